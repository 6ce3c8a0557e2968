"""The Lua that makes changes of serving state atomic inside Redis: the same arithmetic as `serving.store.memory`."""

MUTATE = """
-- Counter states are '<d' packed: updated_at, counters, latests. Every double arithmetic here is C's, as in Python.
local function bump(key, at, slots, latests, half_lives, width)
  local layout = '<' .. string.rep('d', width + 1)
  local value = redis.call('GET', key)
  local state = {}
  if value then
    state = {struct.unpack(layout, value)}
    state[width + 2] = nil
  else
    for i = 1, width + 1 do state[i] = 0 end
  end
  local updated = state[1]
  if at >= updated then
    for i, half_life in ipairs(half_lives) do
      if state[i + 1] ~= 0 then state[i + 1] = state[i + 1] * 2 ^ ((updated - at) / half_life) end
    end
    for _, slot in ipairs(slots) do state[slot + 2] = state[slot + 2] + 1 end
    state[1] = at
  else
    for _, slot in ipairs(slots) do
      state[slot + 2] = state[slot + 2] + 2 ^ ((at - updated) / half_lives[slot + 1])
    end
  end
  for _, slot in ipairs(latests) do
    if state[slot + 2] < at then state[slot + 2] = at end
  end
  redis.call('SET', key, struct.pack(layout, unpack(state)))
end

local function append(key, record, at_column, horizon, expire_s)
  local start, width = 0, #record
  if horizon > 0 and width > 0 then
    local size = redis.call('STRLEN', key)
    while start < size do
      local from = start + 8 * at_column
      local moment = struct.unpack('<i8', redis.call('GETRANGE', key, from, from + 7))
      if moment >= horizon then break end
      start = start + width
    end
  end
  if start > 0 then
    redis.call('SET', key, redis.call('GETRANGE', key, start, -1) .. record)
  else
    redis.call('APPEND', key, record)
    if width == 0 and redis.call('EXISTS', key) == 0 then redis.call('SET', key, '') end
  end
  if expire_s > 0 then redis.call('EXPIRE', key, expire_s) end
end

-- A script that fails half way keeps what it did, so all keys are looked at before the first is changed.
local function unreadable(mutations, place)
  for _, m in ipairs(mutations) do
    local key = place(m[2])
    local kind = redis.call('TYPE', key).ok
    if m[1] ~= 0 and kind ~= 'none' then
      local size = kind == 'string' and redis.call('STRLEN', key)
      local bad = not size
      if size and m[1] == 1 then bad = #m[3] > 0 and size % #m[3] ~= 0 end
      if size and m[1] == 2 then bad = size ~= 0 and size ~= 8 * (m[7] + 1) end
      if bad then return redis.error_reply('UNREADABLE ' .. key .. ' is a ' .. kind .. ' of another size or type') end
    end
  end
end

local function mutate(mutations, place)
  for _, m in ipairs(mutations) do
    local key = place(m[2])
    if m[1] == 0 then redis.call('SET', key, m[3])
    elseif m[1] == 1 then append(key, m[3], m[4], m[5], m[6])
    else bump(key, m[3], m[4], m[5], m[6], m[7]) end
  end
end

local function placed(root, version, live_prefixes)
  return function(key)
    for _, prefix in ipairs(live_prefixes) do
      if string.sub(key, 1, #prefix) == prefix then return root .. 'always:' .. key end
    end
    return root .. version .. ':' .. key
  end
end
"""

APPLY = (
    MUTATE
    + """
-- ARGV: root of all keys, version, msgpack of live prefixes, msgpack of mutations
local mutations, place = cmsgpack.unpack(ARGV[4]), placed(ARGV[1], ARGV[2], cmsgpack.unpack(ARGV[3]))
local wrong = unreadable(mutations, place)
if wrong then return wrong end
mutate(mutations, place)
return 1
"""
)

COMMIT = (
    MUTATE
    + """
-- One event: counted once, appended to the stream, and applied to the version in force and to the one before it, which a
-- server may still read and a rollback goes back to; or nothing of it. A version of another log is left as it is, and so
-- is an earlier one that lacks events before this one: what it lacks is replayed when it comes into force again.
-- KEYS: pointer, stream, done key. ARGV: root, msgpack of live prefixes, msgpack of mutations, seconds that the done key
-- lives, identity of the log, known_at, payload
local versions = redis.call('HMGET', KEYS[1], 'current', 'previous')
if not versions[1] then return redis.error_reply('NOTHINGPUBLISHED nothing is published') end
if redis.call('EXISTS', KEYS[3]) == 1 then return 0 end
local last = redis.call('XREVRANGE', KEYS[2], '+', '-', 'COUNT', 1)
local last_id = last[1] and last[1][1] or '0-0'
local whole = {}
for rank, version in ipairs({versions[1], versions[2] or nil}) do
  local meta = ARGV[1] .. version .. ':meta'
  local holds_until, log = unpack(redis.call('HMGET', meta, 'holds_until', 'log'))
  if rank == 1 or holds_until == last_id then
    whole[#whole + 1] = {version, meta, not log or log == ARGV[5]}
  end
end
local mutations, live_prefixes = cmsgpack.unpack(ARGV[3]), cmsgpack.unpack(ARGV[2])
for _, one in ipairs(whole) do
  local wrong = one[3] and unreadable(mutations, placed(ARGV[1], one[1], live_prefixes))
  if wrong then return wrong end
end
local id = redis.call('XADD', KEYS[2], '*', 'log', ARGV[5], 'known_at', ARGV[6], 'event', ARGV[7])
redis.call('SET', KEYS[3], '1', 'EX', ARGV[4])
for _, one in ipairs(whole) do
  if one[3] then mutate(mutations, placed(ARGV[1], one[1], live_prefixes)) end
  redis.call('HSET', one[2], 'holds_until', id)
end
return 1
"""
)

SHOW = (
    MUTATE
    + """
-- Counts posts as shown to a viewer and logs their feed, unless another feed was shown since the viewer's record was read.
-- KEYS: the viewer's record, feed log. ARGV: root, version, msgpack of live prefixes, msgpack of mutations, bytes of the
-- record as it was read, its last entry, feed, about how many feeds the log keeps
local last = ARGV[6]
if redis.call('STRLEN', KEYS[1]) ~= tonumber(ARGV[5]) then return 0 end
if #last > 0 and redis.call('GETRANGE', KEYS[1], -#last, -1) ~= last then return 0 end
local mutations, place = cmsgpack.unpack(ARGV[4]), placed(ARGV[1], ARGV[2], cmsgpack.unpack(ARGV[3]))
local wrong = unreadable(mutations, place)
if wrong then return wrong end
redis.call('XADD', KEYS[2], 'MAXLEN', '~', ARGV[8], '*', 'feed', ARGV[7])
mutate(mutations, place)
return 1
"""
)

FLIP = """
-- Puts a version in force, if no event came since the stream id up to which it holds all of them.
-- KEYS: pointer, stream, meta of the new version. ARGV: root, new version, last stream id that it holds
local last = redis.call('XREVRANGE', KEYS[2], '+', '-', 'COUNT', 1)
local last_id = last[1] and last[1][1] or '0-0'
if last_id ~= ARGV[3] then return 0 end
local old = redis.call('HGET', KEYS[1], 'current')
if old and old ~= ARGV[2] then
  redis.call('HSET', KEYS[1], 'previous', old)
  redis.call('HSET', ARGV[1] .. old .. ':meta', 'holds_until', last_id)
end
redis.call('HSET', KEYS[3], 'holds_until', last_id)
redis.call('HSET', KEYS[1], 'current', ARGV[2])
return 1
"""
