//! Sequences of well-formed packets that no conforming peer sends, for a device: wrong opcode
//! order, distant PSNs, unsolicited responses, wrong lengths. Memory that was not granted must not
//! change.

use crate::packets::Fields;
use longhaul_cm::{Accept, Event as CmEvent, RejectReason};
use longhaul_node::{Frame, Gather, Node, Payload, Side, Transmit};
use longhaul_rnic::{
    Access, AddressVector, BringUp, Config, Counters, Destination, Event, Memory, Mtu, PdId,
    QpAttr, QpInit, QpKind, QpState, RecvWr, Rnic, SendOp, SendWr, Sge,
};
use longhaul_units::{Duration, Instant, LKey, Msn, Psn, Qpn, RKey};
use longhaul_wire::mad::{GSI_QKEY, MAD_LEN, Mad, Message};
use longhaul_wire::{
    Aeth, AtomicAckEth, AtomicEth, Bth, Deth, Head, MacAddr, Opcode, Path, Reth, Syndrome,
    Transport,
};
use std::net::IpAddr;
use std::ops::Range;

/// Start address of the memory.
const BASE: u64 = 0x5000_0000;
const MEMORY_LEN: usize = 16 * 1024;
/// Source of the device's requests and of the peer's READs.
const SOURCE: Range<usize> = 0..2048;
/// Memory that the peer may write to, and use for atomics.
const WRITABLE: Range<usize> = 4096..6144;
const RECEIVES: usize = 8192;
const RECEIVE_COUNT: usize = 8;
const RECEIVE_STEP: usize = 768;
const RECEIVE_LEN: u32 = 600;
/// Results of the device's READs and atomics.
const RESULTS: Range<usize> = 15_000..15_700;
const QKEY: u32 = 0x0042_4242;
/// Bytes of input per packet.
const STEP_LEN: usize = 14;

struct Flat(Vec<u8>);

impl Flat {
    fn at(address: u64, len: usize) -> Range<usize> {
        let at = (address - BASE) as usize;
        at..at + len
    }

    fn word(&self, address: u64) -> u64 {
        let mut word = [0; 8];
        word.copy_from_slice(&self.0[Self::at(address, 8)]);
        u64::from_ne_bytes(word)
    }

    fn set(&mut self, address: u64, value: u64) {
        self.0[Self::at(address, 8)].copy_from_slice(&value.to_ne_bytes());
    }
}

impl Gather for Flat {
    fn gather(&self, address: u64, out: &mut [u8]) {
        out.copy_from_slice(&self.0[Self::at(address, out.len())]);
    }
}

impl Memory for Flat {
    fn scatter(&mut self, address: u64, payload: &Payload<'_>) {
        payload.copy_to(&mut self.0[Self::at(address, payload.len())]);
    }

    fn fetch_add(&mut self, address: u64, add: u64) -> u64 {
        let found = self.word(address);
        self.set(address, found.wrapping_add(add));
        found
    }

    fn compare_swap(&mut self, address: u64, compare: u64, swap: u64) -> u64 {
        let found = self.word(address);
        if found == compare {
            self.set(address, swap);
        }
        found
    }
}

/// Writes frames out, as a port does, and discards them.
#[derive(Default)]
struct Sink {
    frames: usize,
    buffer: Vec<u8>,
}

impl Transmit for Sink {
    fn room(&mut self, _side: Side) -> usize {
        32
    }

    fn transmit(&mut self, _side: Side, frame: &Frame<'_>) {
        self.frames += 1;
        self.buffer.resize(frame.len(), 0);
        frame.write_to(&mut self.buffer);
    }
}

fn local_ip() -> IpAddr {
    IpAddr::from([10, 77, 0, 2])
}

fn peer_ip() -> IpAddr {
    IpAddr::from([10, 77, 0, 1])
}

struct Target {
    device: Rnic<Flat>,
    kind: QpKind,
    qpn: Qpn,
    source: LKey,
    results: LKey,
    receives: LKey,
    rkeys: [RKey; 3],
    now: Instant,
    sink: Sink,
    before: Vec<u8>,
}

impl Target {
    fn new(kind: QpKind) -> Target {
        let memory: Vec<u8> = (0..MEMORY_LEN).map(|i| (i * 7 + i / 256) as u8).collect();
        let mut config = Config::new(MacAddr([2, 0, 10, 77, 0, 2]), local_ip());
        config.path_mtu_max = Mtu::B256;
        config.ack_every = 4;
        let mut device = Rnic::new(config, Flat(memory.clone()));
        let granted = "an empty device grants it";
        let pd: PdId = device.alloc_pd().expect(granted);
        let mut region = |range: Range<usize>, access| {
            let (at, len) = (BASE + range.start as u64, range.len() as u64);
            device.reg_mr(pd, at, len, at, access).expect(granted)
        };
        let source = region(SOURCE, Access::REMOTE_READ);
        let writable = region(WRITABLE, Access::ALL);
        let receives =
            region(RECEIVES..RECEIVES + RECEIVE_COUNT * RECEIVE_STEP, Access::LOCAL_WRITE);
        let results = region(RESULTS, Access::LOCAL_WRITE);
        let cq = device.create_cq(4096).expect(granted);
        let init = QpInit { send_sge_max: 2, recv_sge_max: 2, ..QpInit::new(kind, pd, cq, 16) };
        let qpn = device.create_qp(&init).expect(granted);
        let address = AddressVector {
            destination_ip: peer_ip(),
            hop_limit: 9,
            traffic_class: 0,
            flow_label: 0,
        };
        device.create_ah(Instant::ZERO, pd, &address).expect(granted);
        let mut target = Target {
            device,
            kind,
            qpn,
            source: source.lkey,
            results: results.lkey,
            receives: receives.lkey,
            rkeys: [writable.rkey, source.rkey, receives.rkey],
            now: Instant::ZERO,
            sink: Sink::default(),
            before: memory,
        };
        target.connect();
        target
    }

    /// From any state to a new connection, with receives and requests posted.
    fn connect(&mut self) {
        let granted = "a transition that exists";
        let reset = QpAttr::to(QpState::Reset);
        self.device.modify_qp(self.now, self.qpn, &reset).expect(granted);
        let to = BringUp {
            address: AddressVector { hop_limit: 9, ..AddressVector::to(peer_ip()) },
            qkey: QKEY,
            path_mtu: Mtu::B256,
            sq_psn: Psn::new(0xff_fff0),
            rq_psn: Psn::new(0xff_fffe),
            max_rd_atomic: 4,
            max_dest_rd_atomic: 4,
            timeout: 1,
            ..BringUp::to(peer_ip(), Qpn::new(0x77))
        };
        self.device.bring_up_qp(self.now, self.qpn, &to).expect(granted);
        for i in 0..RECEIVE_COUNT {
            let address = BASE + (RECEIVES + i * RECEIVE_STEP) as u64;
            let segments = [
                Sge { address, len: 100, lkey: self.receives },
                Sge { address: address + 100, len: RECEIVE_LEN - 100, lkey: self.receives },
            ];
            let receive = RecvWr { wr_id: i as u64, segments: &segments };
            self.device.post_recv(self.qpn, &receive).expect("room in the queue");
        }
        self.post_requests();
    }

    fn post_requests(&mut self) {
        let (remote_address, rkey) = (0x1000, RKey(9));
        let into = |at: usize, len| Sge {
            address: BASE + (RESULTS.start + at) as u64,
            len,
            lkey: self.results,
        };
        let from = Sge { address: BASE, len: 700, lkey: self.source };
        let send = SendOp::Send { immediate: None, invalidate: None };
        let write = SendOp::Write { remote_address, rkey, immediate: None };
        let read = SendOp::Read { remote_address, rkey };
        let add = SendOp::FetchAdd { remote_address, rkey, add: 1 };
        let destination = Destination { qpn: Qpn::new(0x77), ..Destination::default() };
        let datagram = SendOp::Datagram { destination, immediate: None };
        let requests: &[(SendOp, Sge)] = match self.kind {
            QpKind::Rc => &[(send, from), (read, into(0, 600)), (add, into(680, 8)), (write, from)],
            QpKind::Uc => &[(send, from), (write, from)],
            QpKind::Ud => &[(datagram, Sge { len: 200, ..from })],
        };
        for (op, segment) in requests {
            let segments = [*segment];
            let request = SendWr {
                wr_id: 1,
                op: *op,
                segments: &segments,
                inline: false,
                signaled: true,
                solicited: false,
                fence: false,
            };
            self.device.post_send(self.now, self.qpn, &request).expect("room in the queue");
        }
        self.send();
    }

    fn send(&mut self) {
        loop {
            let before = self.sink.frames;
            self.device.poll_transmit(self.now, &mut self.sink);
            if self.sink.frames == before {
                return;
            }
            assert!(self.sink.frames < 1 << 20, "a device that never stops sending");
        }
    }

    /// Passes one packet to the device and processes the effects.
    fn take(&mut self, bytes: &[u8]) {
        self.now += Duration::from_us(1);
        let head = Head::copy_of(bytes);
        if let Ok(frame) = Frame::received(&head, bytes) {
            self.device.handle_frame(self.now, 0, &frame);
        }
        self.send();
    }

    fn pass(&mut self, span: Duration) {
        self.now += span;
        self.device.handle_timeout(self.now);
        self.send();
    }

    fn recover(&mut self) {
        while self.device.poll_event().is_some() {}
        self.device.poll_cq(longhaul_rnic::CqId(0), usize::MAX, |_| {});
        let is_broken = |state| matches!(state, QpState::Error | QpState::SendQueueError);
        if self.device.query_qp(self.qpn).is_ok_and(|info| is_broken(info.state)) {
            self.connect();
        }
    }

    /// Checks that memory is unchanged except where writes were granted.
    fn check(&self) {
        let mut expected = self.before.clone();
        let memory = &self.device.memory().0;
        let mut grant =
            |range: Range<usize>| expected[range.clone()].copy_from_slice(&memory[range]);
        if self.kind != QpKind::Ud {
            grant(WRITABLE);
        }
        for i in 0..RECEIVE_COUNT {
            let at = RECEIVES + i * RECEIVE_STEP;
            grant(at..at + RECEIVE_LEN as usize);
        }
        if self.kind == QpKind::Rc {
            grant(RESULTS.start..RESULTS.start + 600);
            grant(RESULTS.start + 680..RESULTS.start + 688);
        }
        let changed = (0..MEMORY_LEN).find(|&i| memory[i] != expected[i]);
        assert_eq!(changed, None, "a byte changed that nobody was allowed to write to");
    }

    /// The packet encoded by a step.
    fn packet(&self, step: &[u8; STEP_LEN], of: Transport) -> Vec<u8> {
        let [
            op,
            psn_mode,
            psn_by,
            key,
            va_high,
            va_low,
            len_mode,
            len,
            payload,
            flags,
            syndrome,
            x,
            y,
            z,
        ] = *step;
        let opcodes: Vec<Opcode> =
            (0..=255).map(Opcode).filter(|o| o.name().is_some() && o.transport() == of).collect();
        let opcode = if op >= 0xf0 { Opcode(x) } else { opcodes[usize::from(op) % opcodes.len()] };
        let psn = self.psn(psn_mode, [x, y, z], psn_by as i8);
        let rkey = self.rkey(key, [x, y, z]);
        let near = u64::from(u16::from_be_bytes([va_high, va_low]));
        let virtual_address = virtual_address(len_mode, near);
        let claimed = claimed_len(len_mode, [payload, len, z]);
        let dest = if flags & 0x40 == 0 { self.qpn } else { Qpn::new(u32::from(x)) };
        let mut bth = Bth::new(opcode, dest, psn);
        bth.ack_request = flags & 1 != 0;
        bth.solicited = flags & 2 != 0;
        bth.becn = flags & 4 != 0;
        let qkey = if flags & 8 == 0 { QKEY } else { u32::from_be_bytes([x, y, z, flags]) };
        let wide = u64::from_be_bytes([x, y, z, flags, op, key, len, syndrome]);
        let fields = Fields {
            path: self.path(if flags & 0x80 == 0 {
                peer_ip()
            } else {
                IpAddr::from([10, 77, 0, 3])
            }),
            fragmentation: None,
            bth,
            reth: opcode.has_reth().then_some(Reth { virtual_address, rkey, len: claimed }),
            aeth: opcode.has_aeth().then_some(Aeth {
                syndrome: Syndrome::read(syndrome),
                msn: Msn::new(u32::from(y)),
            }),
            deth: opcode.has_deth().then_some(Deth {
                qkey,
                reserved_8: z,
                source_qp: Qpn::new(0x77),
            }),
            atomic: opcode.has_atomic().then_some(AtomicEth {
                virtual_address: if flags & 0x10 == 0 {
                    virtual_address & !7
                } else {
                    virtual_address
                },
                rkey,
                swap_or_add: wide,
                compare: near,
            }),
            atomic_ack: (opcode == Opcode::RC_ATOMIC_ACK)
                .then_some(AtomicAckEth { original: wide }),
            immediate: opcode.has_immediate().then_some([x, y, z, op]),
            invalidate: opcode.has_invalidate().then_some(rkey),
            payload: (0..payload_len(payload)).map(|i| (i as u8).wrapping_mul(x | 1)).collect(),
        };
        fields.build()
    }

    /// A PSN near one known to the QP, or any: `mode` selects which, `by` is added.
    fn psn(&self, mode: u8, any: [u8; 3], by: i8) -> Psn {
        let snapshot = self.device.qp_snapshots().next().expect("the target has a QP");
        let (next, una) = match &snapshot.reliable {
            Some((requester, _)) => (requester.next, requester.una),
            None => (snapshot.next_psn, snapshot.next_psn),
        };
        let [x, y, z] = any;
        let psn = match mode % 5 {
            0 => snapshot.expected_psn,
            1 => una,
            2 => next,
            3 => Psn::new(u32::from_be_bytes([0, x, y, z])),
            _ => Psn::new(snapshot.expected_psn.get().wrapping_sub(1 << 23)),
        };
        Psn::new(psn.get().wrapping_add_signed(i32::from(by)) & 0xff_ffff)
    }

    /// Usually the key of an existing region, otherwise any.
    fn rkey(&self, key: u8, [x, y, z]: [u8; 3]) -> RKey {
        match key {
            0..0xe0 => self.rkeys[usize::from(key) % 3],
            _ => RKey(u32::from_be_bytes([x, y, z, key])),
        }
    }

    fn path(&self, source_ip: IpAddr) -> Path {
        Path {
            source_mac: MacAddr([2, 0, 10, 77, 0, 1]),
            destination_mac: MacAddr([2, 0, 10, 77, 0, 2]),
            vlan: None,
            source_ip,
            destination_ip: local_ip(),
            traffic_class: 0,
            hop_limit: 64,
            flow_label: 0,
            udp_source_port: 0xc000,
        }
    }
}

/// An address that is writable, readable or out of bounds, by the upper bits of `mode`.
fn virtual_address(mode: u8, near: u64) -> u64 {
    match mode >> 6 {
        0 | 1 => BASE + WRITABLE.start as u64 + near % WRITABLE.len() as u64,
        2 => BASE + near % MEMORY_LEN as u64,
        _ => u64::MAX - near,
    }
}

/// Message length of a RETH, correct or not, by the lower bits of `mode`.
fn claimed_len(mode: u8, [payload, len, low]: [u8; 3]) -> u32 {
    match mode % 4 {
        0 => u32::from(payload),
        1 => u32::from(len) * 16,
        2 => 256 + u32::from(len),
        _ => u32::from(len) << 24 | u32::from(low),
    }
}

/// Bytes of payload: usually less than a path MTU of 256 bytes, sometimes equal or more.
fn payload_len(code: u8) -> usize {
    match code {
        0xc0..0xe0 => 256,
        0xe0.. => 256 + usize::from(code & 0x1f),
        len => usize::from(len),
    }
}

fn packets(data: &[u8], kind: QpKind, of: Transport) -> Counters {
    let mut target = Target::new(kind);
    for step in data.as_chunks::<STEP_LEN>().0.iter().take(64) {
        if step[0] == 0xef {
            target.pass(Duration::from_us(u64::from(step[1]) * 8));
        } else {
            let bytes = target.packet(step, of);
            target.take(&bytes);
        }
        target.recover();
    }
    target.check();
    target.device.counters().clone()
}

/// Packets for a reliable connection.
pub fn reliable(data: &[u8]) {
    packets(data, QpKind::Rc, Transport::Rc);
}

/// Packets for an unreliable connection.
pub fn unreliable(data: &[u8]) {
    packets(data, QpKind::Uc, Transport::Uc);
}

/// Packets for a datagram QP.
pub fn datagram(data: &[u8]) {
    packets(data, QpKind::Ud, Transport::Ud);
}

/// Management datagrams for QP1, for a program that listens to every service. The byte before each
/// selects the program's action.
pub fn management(data: &[u8]) {
    let mut target = Target::new(QpKind::Rc);
    for (number, chunk) in data.chunks(1 + MAD_LEN).take(32).enumerate() {
        let Some((&act, rest)) = chunk.split_first() else { continue };
        let mut mad: Mad = [0; MAD_LEN];
        mad[..rest.len()].copy_from_slice(rest);
        if let Ok((_, Message::Req(req))) = Message::read(&mad)
            && act & 1 == 0
        {
            let _ = target.device.cm().listen(req.service_id, usize::from(act >> 4));
        }
        let mut bth = Bth::new(Opcode::UD_SEND_ONLY, Qpn::GSI, Psn::new(number as u32));
        bth.ack_request = act & 2 != 0;
        let fields = Fields {
            path: target.path(peer_ip()),
            fragmentation: None,
            bth,
            reth: None,
            aeth: None,
            deth: Some(Deth { qkey: GSI_QKEY, reserved_8: 0, source_qp: Qpn::GSI }),
            atomic: None,
            atomic_ack: None,
            immediate: None,
            invalidate: None,
            payload: mad.to_vec(),
        };
        target.take(&fields.build());
        while let Some(event) = target.device.poll_event() {
            answer(&mut target, act, &event);
        }
        if act & 4 != 0 {
            target.pass(Duration::from_ms(u64::from(act) * 40));
        }
        target.send();
    }
    target.check();
}

fn answer(target: &mut Target, act: u8, event: &Event) {
    let Event::Cm(CmEvent::ConnectRequest { connection, .. }) = event else { return };
    let (now, local_qpn) = (target.now, target.qpn);
    let accept = Accept {
        local_qpn,
        starting_psn: Psn::new(0),
        responder_resources: 1,
        initiator_depth: 1,
        flow_control: true,
        rnr_retry_count: 7,
        srq: false,
        private_data: &[],
    };
    let cm = target.device.cm();
    let _ = match act & 0x18 {
        0 => cm.accept(now, *connection, &accept),
        8 => cm.reject(now, *connection, RejectReason::CONSUMER, &[]),
        0x10 => cm.destroy(now, *connection),
        _ => Ok(()),
    };
}

#[cfg(test)]
mod tests {
    use super::*;
    use longhaul_rnic::Counter;
    use std::path::Path;

    /// Counters after the committed sequences.
    fn counted(target: &str, kind: QpKind, of: Transport) -> Counters {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus").join(target);
        let mut sum = Counters::default();
        for entry in std::fs::read_dir(folder).unwrap() {
            let counters = packets(&std::fs::read(entry.unwrap().path()).unwrap(), kind, of);
            counters.iter().for_each(|(counter, n)| sum.add(counter, n));
        }
        sum
    }

    fn reaches(sum: &Counters, what: &[Counter]) {
        for counter in what {
            assert!(sum.get(*counter) > 0, "{} is never reached", counter.name());
        }
    }

    #[test]
    fn sequences_get_past_the_door() {
        let sum = counted("reliable", QpKind::Rc, Transport::Rc);
        reaches(
            &sum,
            &[
                Counter::RxSendRequests,
                Counter::RxWriteRequests,
                Counter::RxReadRequests,
                Counter::RxAtomicRequests,
                Counter::DuplicateRequest,
                Counter::OutOfSequence,
                Counter::RespInvalidRequest,
                Counter::RespRemoteAccess,
                Counter::ReqBadResponse,
                Counter::RxAcks,
                Counter::PacketSeqErr,
                Counter::RxRnrNak,
                Counter::UnsentAck,
            ],
        );
        let sum = counted("unreliable", QpKind::Uc, Transport::Uc);
        reaches(
            &sum,
            &[
                Counter::RxSendRequests,
                Counter::RxWriteRequests,
                Counter::BrokenMessage,
                Counter::MessageBrokenOff,
            ],
        );
        let sum = counted("datagram", QpKind::Ud, Transport::Ud);
        reaches(&sum, &[Counter::RxSendRequests, Counter::TooLong]);
    }
}
