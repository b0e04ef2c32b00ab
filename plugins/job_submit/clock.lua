-- The machine's uptime: finer than the whole seconds of os.time, and never set back. slurm-gpuctld stamps its snapshots
-- with it, on the same host.
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

-- The ID of this boot: uptimes compare only within one boot. Nil if it cannot be read.
clock.boot = first_line(BOOT_ID)

-- Kept open and unbuffered, so that each sample is one read of exactly the number, in a third of the time.
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

-- Seconds since boot, with hundredths; nil if it cannot be read.
function clock.uptime()
  if not file then
    return nil
  end
  local text = length > 0 and read(length)
  if not (text and text:byte(length) == SPACE) then -- the number grows by a digit occasionally
    text = read(64)
    text = text and text:match("^%d+%.%d%d ")
    length = text and #text or 0
  end
  return text and tonumber(text) -- tonumber accepts a trailing space
end

return clock
