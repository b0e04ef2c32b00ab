-- Reads the machine's uptime, which is finer than the whole seconds of os.time and is never set back. On the same host,
-- slurm-gpuctld adds the uptime to its snapshots.
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

-- The ID of this boot; nil if it cannot be read. Uptimes can be compared only within one boot.
clock.boot = first_line(BOOT_ID)

-- The file stays open and unbuffered. Each call then reads only the number, in a third of the time.
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

-- Returns the seconds since boot, to hundredths; nil if the uptime cannot be read.
function clock.uptime()
  if not file then
    return nil
  end
  local text = length > 0 and read(length)
  if not (text and text:byte(length) == SPACE) then -- the number of digits has grown
    text = read(64)
    text = text and text:match("^%d+%.%d%d ")
    length = text and #text or 0
  end
  return text and tonumber(text) -- tonumber accepts a trailing space
end

return clock
