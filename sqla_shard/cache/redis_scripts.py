"""What a store says to a Redis: four scripts, each of which is one step.

An item is a text, whose first letter tells what it is.

``V`` *run* *value*
    A value.
``L`` *run* *token*
    A lease, of who has the token.
``T`` (*token* *end*)...
    A tombstone, with the tokens of all who have put it there.

*run* tells the life of the server in which the item was written: 16 letters
of its ``run_id``, which is another one after each start.  An item of another
life is none, for what has become of the row since then is not known; but a
tombstone is one in any.  *end* is a time of the server, in milliseconds.
"""

from __future__ import annotations

__all__ = ["BLOCK", "BLOCKED", "BUSY", "FETCH", "FILL", "LEASED", "UNBLOCK"]

LEASED, BUSY, BLOCKED = 1, 2, 3
"""What :data:`FETCH` answers for a key without a value."""

_RUN = """
local info = redis.call('INFO', 'server')
local run = string.sub(string.match(info, 'run_id:(%x+)'), 1, 16)
"""

_NOW = """
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
"""

# An item; one that is no text is of nobody who follows this, and removed.
_ITEM = """
local function get(key)
    local item = redis.pcall('GET', key) or ''
    if type(item) == 'table' then
        redis.call('DEL', key)
        item = ''
    end
    return item
end
"""

# The tokens of a tombstone but one, and the time when the last of them ends.
_OTHERS = """
local function others(item, token)
    local left, last = '', 0
    for at = 2, #item, 29 do
        local ends = tonumber(string.sub(item, at + 16, at + 28)) or 0
        if ends > now and string.sub(item, at, at + 15) ~= token then
            left = left .. string.sub(item, at, at + 28)
            last = math.max(last, ends)
        end
    end
    return left, last
end
local function put(key, tokens, last)
    return redis.pcall('SET', key, 'T' .. tokens, 'PX', last - now)
end
"""

FETCH = (
    _RUN
    + _NOW
    + _ITEM
    + """
-- KEYS: the guard, and keys.  ARGV: token and milliseconds of a lease, 0 for
-- none, and
-- milliseconds for which a server that was started or flushed gives none.
local is_old = nil
local function old()
    if is_old == nil then
        local guard = get(KEYS[1])
        local since = tonumber(string.match(guard, '^' .. run .. ' (%d+)$'))
        if not since then
            since = now
            redis.pcall('SET', KEYS[1], string.format('%s %.0f', run, now))
        end
        is_old = now - since > tonumber(ARGV[3])
    end
    return is_old
end
local found = {}
for i = 2, #KEYS do
    local item = get(KEYS[i])
    local kind = string.sub(item, 1, 1)
    local is_ours = string.sub(item, 2, 17) == run
    if kind == 'V' and is_ours then
        found[i - 1] = string.sub(item, 18)
    elseif kind == 'L' and is_ours then
        found[i - 1] = 2
    elseif kind == 'T' or ARGV[2] == '0' or not old() then
        found[i - 1] = 3
    else
        local lease = 'L' .. run .. ARGV[1]
        local done = redis.pcall('SET', KEYS[i], lease, 'PX', ARGV[2])
        found[i - 1] = done.err and 3 or 1
    end
end
return found
"""
)
"""Values, and numbers where there is none."""

FILL = (
    _RUN
    + _ITEM
    + """
-- ARGV: milliseconds of a value, and for each key the token of the lease,
-- the value, and whether it is to be kept.
local filled = {}
for i = 1, #KEYS do
    local token, value = ARGV[i * 3 - 1], ARGV[i * 3]
    filled[i] = 0
    if get(KEYS[i]) == 'L' .. run .. token then
        local done = {err = 'too large'}
        if ARGV[i * 3 + 1] == '1' then
            done = redis.pcall(
                'SET', KEYS[i], 'V' .. run .. value, 'PX', ARGV[1])
        end
        if done.err then
            redis.pcall('DEL', KEYS[i])
        else
            filled[i] = 1
        end
    end
end
return filled
"""
)
"""1 where a value was put in the place of its lease, 0 elsewhere."""

BLOCK = (
    _NOW
    + _ITEM
    + _OTHERS
    + """
-- ARGV: token and milliseconds.
local ends = now + tonumber(ARGV[2])
local blocked = {}
for i = 1, #KEYS do
    local item = get(KEYS[i])
    local tokens, last = '', 0
    if string.sub(item, 1, 1) == 'T' then
        tokens, last = others(item, ARGV[1])
    end
    tokens = tokens .. ARGV[1] .. string.format('%013.0f', ends)
    blocked[i] = 1
    if put(KEYS[i], tokens, math.max(last, ends)).err then
        -- No memory for it: the value at least is not to be served.
        blocked[i] = 0
        if string.sub(item, 1, 1) ~= 'T' then
            redis.pcall('DEL', KEYS[i])
        end
    end
end
return blocked
"""
)
"""1 where the tombstone is, 0 elsewhere."""

UNBLOCK = (
    _NOW
    + _ITEM
    + _OTHERS
    + """
-- ARGV: token.
local done = {}
for i = 1, #KEYS do
    local item = get(KEYS[i])
    local tokens, last = '', 0
    if string.sub(item, 1, 1) == 'T' then
        tokens, last = others(item, ARGV[1])
    end
    local answer = {}
    if tokens ~= '' and 'T' .. tokens ~= item then
        answer = put(KEYS[i], tokens, last)
    elseif tokens == '' and item ~= '' then
        answer = redis.pcall('DEL', KEYS[i])
    end
    -- What was deleted is a number.
    done[i] = type(answer) == 'table' and answer.err and 0 or 1
end
return done
"""
)
"""1 where nothing of the token's is left, 0 elsewhere."""
