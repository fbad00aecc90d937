-- Wireshark's and tshark's view of wedjat's task header (docs/reference/protocol.md): fields wedjat.*, what a reply reports, sequence and
-- tag, and which reply answers which task after how long. UDP ports are a preference of the protocol, 1234 unless set otherwise.
--
-- Loaded from Wireshark's folder of plugins, or with: tshark -X lua_script:wedjat.lua

local wedjat = Proto("wedjat", "wedjat task")

local HEADER, EXTENSION, PROOF, ENTRY = 11, 16, 16, 8
local NO_MEMBER = 32767
local CODES = {
    [0] = "NEW_TASK", [2] = "TASK_DONE", [3] = "TASK_DONE_IDLE", [6] = "IDLE_ADD", [7] = "LOAD_UPDATE", [10] = "IDLE_REMOVE",
    [11] = "KEEP_ALIVE", [12] = "WORKER_ID", [13] = "WORKER_ID_ACK", [16] = "TASK_CONTINUATION", [17] = "TASK_REFUSED",
    [18] = "QUEUE_REPORT", [19] = "QUEUE_PROBE", [20] = "PROBE_ANSWER", [21] = "HEARTBEAT", [22] = "STEAL_REQUEST",
    [23] = "PASSED_TASK", [24] = "PARAMETERS", [25] = "COMPLETIONS",
}
local TASK = { [0] = true, [16] = true }
-- What nodes of a rack without a leaf send to each other, and what stands behind a task that one passes on.
local OF_PEERS = { [21] = true, [22] = true, [24] = true }
local PASSED, VIA = 23, 12
local COMPLETIONS = 25
local REPLY = { [2] = true, [3] = true, [17] = true }
-- Those that tell how many tasks a worker has.
local REPORT = { [2] = true, [3] = true, [11] = true, [12] = true, [18] = true, [20] = true }

local f = {
    code = ProtoField.uint8("wedjat.code", "Code", base.DEC, CODES, 0x1F),
    extended = ProtoField.bool("wedjat.extended", "Extension follows", 8, nil, 0x20),
    authenticated = ProtoField.bool("wedjat.authenticated", "Sequence and tag follow", 8, nil, 0x40),
    more = ProtoField.bool("wedjat.more", "Further packets of this task follow", 8, nil, 0x80),
    pool = ProtoField.uint16("wedjat.pool", "Pool"),
    src = ProtoField.uint16("wedjat.src", "Source id"),
    dst = ProtoField.uint16("wedjat.dst", "Destination id"),
    qlen = ProtoField.uint16("wedjat.qlen", "Queue length"),
    seq = ProtoField.uint16("wedjat.seq", "Sequence number, low 16 bits"),
    extension = ProtoField.none("wedjat.extension", "Extension"),
    app = ProtoField.uint32("wedjat.app", "Application id"),
    seq32 = ProtoField.uint32("wedjat.seq32", "Sequence number"),
    service = ProtoField.uint32("wedjat.service_ns", "Processing time, ns"),
    class = ProtoField.uint16("wedjat.class", "Task type"),
    auth = ProtoField.none("wedjat.auth", "Authentication"),
    sequence = ProtoField.uint64("wedjat.auth.sequence", "Sequence"),
    tag = ProtoField.bytes("wedjat.auth.tag", "Tag"),
    worker = ProtoField.uint16("wedjat.worker", "Worker"),
    report = ProtoField.uint16("wedjat.report", "Tasks at the worker"),
    idle = ProtoField.bool("wedjat.idle", "Believed idle"),
    full = ProtoField.bool("wedjat.full", "Has as many tasks as the policy allows"),
    entries = ProtoField.uint16("wedjat.entries", "Completed tasks"),
    completion = ProtoField.none("wedjat.completion", "Completed task"),
    completed_by = ProtoField.uint16("wedjat.completion.worker", "Worker"),
    completed_class = ProtoField.uint16("wedjat.completion.class", "Task type, 7 for all above 6", base.DEC, nil, 0xE000),
    completed_left = ProtoField.uint16("wedjat.completion.left", "Tasks left at the worker", base.DEC, nil, 0x1FFF),
    completed_service = ProtoField.uint32("wedjat.completion.service_ns", "Processing time, ns"),
    timeout = ProtoField.uint16("wedjat.timeout_ms", "Taken out after silence of, ms"),
    load = ProtoField.double("wedjat.load", "Average queue length"),
    node = ProtoField.uint16("wedjat.node", "Node"),
    peer = ProtoField.uint16("wedjat.peer", "To node"),
    via = ProtoField.none("wedjat.via", "Passed on"),
    hops = ProtoField.uint8("wedjat.via.hops", "Times passed on"),
    by = ProtoField.uint16("wedjat.via.by", "By node"),
    origin = ProtoField.uint16("wedjat.via.origin", "Answered in the name of node"),
    mac = ProtoField.ether("wedjat.via.mac", "Its reply goes to"),
    response_in = ProtoField.framenum("wedjat.response_in", "Answered in", base.NONE, frametype.RESPONSE),
    response_to = ProtoField.framenum("wedjat.response_to", "Answer to", base.NONE, frametype.REQUEST),
    time = ProtoField.relative_time("wedjat.time", "Response time"),
}
wedjat.fields = f

local e = {
    short = ProtoExpert.new("wedjat.short", "Shorter than its header", expert.group.MALFORMED, expert.severity.ERROR),
    code = ProtoExpert.new("wedjat.unknown", "Code that is not assigned", expert.group.PROTOCOL, expert.severity.WARN),
    proof = ProtoExpert.new("wedjat.proof", "Tasks have no sequence and tag", expert.group.PROTOCOL, expert.severity.WARN),
}
wedjat.experts = e

wedjat.prefs.ports = Pref.range("UDP ports", "1234", "Ports of tasks: leaf.udp_port of the configuration", 65535)

-- Tasks that are not answered yet, by client and number; and for frames that were paired, the other one and the time.
local open, answered_in, answer_to = {}, {}, {}

function wedjat.init()
    open, answered_in, answer_to = {}, {}, {}
end

local function pair(pinfo, key, code)
    if pinfo.visited then return end
    if code == 0 then
        open[key] = { frame = pinfo.number, time = pinfo.abs_ts }
    elseif REPLY[code] and open[key] then
        local task = open[key]
        open[key] = nil
        answered_in[task.frame] = pinfo.number
        answer_to[pinfo.number] = { frame = task.frame, seconds = pinfo.abs_ts - task.time }
    end
end

local function show_pair(tree, number)
    if answered_in[number] then tree:add(f.response_in, answered_in[number]):set_generated() end
    local task = answer_to[number]
    if task then
        tree:add(f.response_to, task.frame):set_generated()
        local whole = math.floor(task.seconds)
        tree:add(f.time, NSTime.new(whole, math.floor((task.seconds - whole) * 1e9 + 0.5))):set_generated()
    end
end

-- What the numbers of the header mean under this code; and the same in words.
local function meaning(tree, code, src, dst, qlen)
    local function add(field, range, value) tree:add(field, range, value):set_generated() end
    if TASK[code] then
        if dst:uint() == NO_MEMBER then return "" end
        add(f.worker, dst, dst:uint())
        local idle, full = qlen:uint() % 2 == 1, qlen:uint() % 4 >= 2
        add(f.idle, qlen, idle)
        add(f.full, qlen, full)
        return " to worker " .. dst:uint() .. (idle and ", idle" or "") .. (full and ", full" or "")
    elseif REPORT[code] then
        local tasks = code == 3 and 0 or qlen:uint()
        add(f.worker, src, src:uint())
        add(f.report, qlen, tasks)
        return " of worker " .. src:uint() .. ", which has " .. tasks
    elseif code == COMPLETIONS then
        add(f.worker, src, src:uint())
        add(f.entries, qlen, qlen:uint())
        return " of " .. qlen:uint() .. " tasks, first of worker " .. src:uint()
    elseif code == 13 then
        add(f.worker, dst, dst:uint())
        add(f.timeout, qlen, qlen:uint())
        return " to worker " .. dst:uint()
    elseif code == 19 then
        add(f.worker, dst, dst:uint())
        return " to worker " .. dst:uint()
    elseif OF_PEERS[code] then
        add(f.node, src, src:uint())
        add(f.peer, dst, dst:uint())
        return " of node " .. src:uint() .. " to node " .. dst:uint()
    elseif code == 17 then
        return " by " .. src:uint() .. ", which has " .. qlen:uint()
    end
    return ""
end

local function extension(buffer, tree, code)
    local sub = tree:add(f.extension, buffer)
    sub:add(f.app, buffer(0, 4))
    sub:add(f.seq32, buffer(4, 4))
    sub:add(f.service, buffer(8, 4))
    sub:add(f.class, buffer(12, 2))
    if code == 7 then sub:add(f.load, buffer(8, 4), buffer(8, 4):uint() / 65536):set_generated() end
end

local function proof(buffer, tree)
    local sub = tree:add(f.auth, buffer)
    sub:add(f.sequence, buffer(0, 8))
    sub:add(f.tag, buffer(8, 8))
end

local function completion(buffer, tree)
    local sub = tree:add(f.completion, buffer)
    sub:add(f.completed_by, buffer(0, 2))
    sub:add(f.completed_class, buffer(2, 2))
    sub:add(f.completed_left, buffer(2, 2))
    sub:add(f.completed_service, buffer(4, 4))
end

local function via(buffer, tree)
    local sub = tree:add(f.via, buffer)
    sub:add(f.hops, buffer(1, 1))
    sub:add(f.by, buffer(2, 2))
    sub:add(f.origin, buffer(4, 2))
    sub:add(f.mac, buffer(6, 6))
end

function wedjat.dissector(buffer, pinfo, tree)
    pinfo.cols.protocol = "wedjat"
    local length = buffer:reported_length_remaining()
    if buffer:len() < HEADER then
        tree:add(wedjat, buffer()):add_proto_expert_info(e.short)
        return buffer:len()
    end
    local code = buffer(0, 1):bitfield(3, 5)
    local extended = buffer(0, 1):bitfield(2, 1) == 1
    local authenticated = buffer(0, 1):bitfield(1, 1) == 1
    local whole = HEADER + (extended and EXTENSION or 0) + (authenticated and PROOF or 0)
    local name = CODES[code] or ("code " .. code)
    local pool, src, dst, qlen, seq = buffer(1, 2), buffer(3, 2), buffer(5, 2), buffer(7, 2), buffer(9, 2)

    local sub = tree:add(wedjat, buffer(0, math.min(whole, buffer:len())))
    local kind = sub:add(f.code, buffer(0, 1))
    sub:add(f.extended, buffer(0, 1))
    sub:add(f.authenticated, buffer(0, 1))
    sub:add(f.more, buffer(0, 1))
    sub:add(f.pool, pool)
    sub:add(f.src, src)
    sub:add(f.dst, dst)
    sub:add(f.qlen, qlen)
    sub:add(f.seq, seq)
    local text = name .. " pool " .. pool:uint() .. " seq " .. seq:uint() .. meaning(sub, code, src, dst, qlen)
    sub:append_text(": " .. text)
    pinfo.cols.info = text
    if not CODES[code] then kind:add_proto_expert_info(e.code) end
    if authenticated and (TASK[code] or code == PASSED) then kind:add_proto_expert_info(e.proof) end
    if length < whole then sub:add_proto_expert_info(e.short) end
    if buffer:len() < whole then return buffer:len() end

    local at, number = HEADER, seq:uint()
    if extended then
        extension(buffer(at, EXTENSION), sub, code)
        number = buffer(at, 4):uint() .. "/" .. buffer(at + 4, 4):uint()
        at = at + EXTENSION
    end
    if authenticated then
        proof(buffer(at, PROOF), sub)
        at = at + PROOF
    end
    local rest = buffer:len() - at
    if code == PASSED and rest >= VIA and length == buffer:len() then via(buffer(buffer:len() - VIA, VIA), sub) end
    if code == COMPLETIONS and not extended and rest == ENTRY * qlen:uint() and length == buffer:len() then
        while at < buffer:len() do
            completion(buffer(at, ENTRY), sub)
            at = at + ENTRY
        end
    end
    local client = REPLY[code] and { pinfo.dst, pinfo.dst_port } or { pinfo.src, pinfo.src_port }
    pair(pinfo, tostring(client[1]) .. " " .. client[2] .. " " .. pool:uint() .. " " .. number, code)
    show_pair(sub, pinfo.number)
    if buffer:len() > at then Dissector.get("data"):call(buffer(at):tvb(), pinfo, tree) end
    return buffer:len()
end

local table, ports = DissectorTable.get("udp.port"), wedjat.prefs.ports
table:add(ports, wedjat)

function wedjat.prefs_changed()
    if ports ~= wedjat.prefs.ports then
        table:remove(ports, wedjat)
        ports = wedjat.prefs.ports
        table:add(ports, wedjat)
    end
end
