-- The machine's uptime: finer than the whole seconds of os.time, and never set back. slurm-gpuctld, on the same host,
-- stamps its snapshots with it.
local clock = {}

local UPTIME, BOOT_ID = "/proc/uptime", "/proc/sys/kernel/random/boot_id"

local function first_line(path)
  local file = io.open(path, "r")
  local line = file and file:read("*l")
  if file then
    file:close()
  end
  return line
end

-- A name for this boot of the machine: uptimes compare only within one. Nil where the machine does not tell.
clock.boot = first_line(BOOT_ID)

-- Kept open and without a buffer, so that each look is one read of exactly the number; that takes a third of the time.
local file = clock.boot and io.open(UPTIME, "r")
local length = 0
if file then
  file:setvbuf("no")
end

local function read(bytes)
  file:seek("set", 0)
  return file:read(bytes)
end

local SPACE = string.byte(" ")

-- Seconds since boot, in hundredths; nil where the machine does not tell.
function clock.uptime()
  if not file then
    return nil
  end
  local text = length > 0 and read(length)
  if not (text and text:byte(length) == SPACE) then -- it grows by a digit now and then
    text = read(64)
    text = text and text:match("^%d+%.%d%d ")
    length = text and #text or 0
  end
  return text and tonumber(text) -- which minds no space at the end
end

return clock
