//! The lines that RC adds to wire scripts.
//!
//! ```text
//! config timeout=1ms adaptive=2ms retry=7 rnr_retry=7 window=16 dest_reads=4 report_credits
//! wait   1ms              time passes
//! adjust rnr_retry=3      the program changes attributes in RTS
//! ```

use longhaul_node::Payload;
use longhaul_rc::*;
use longhaul_units::{Instant, Qpn};
use longhaul_wire::{Packet, PathTemplate, Transport, Verb};
use longhaul_wire_script::{Halves, LOCAL_QPN, Line, Memory, PEER_QPN, Wire, duration};
use longhaul_work::{RecvQueue, SendRefused, SendWr};

pub use longhaul_wire_script::{Device, KEY, template};

pub const MEMORY: usize = 1 << 20;

pub fn device() -> Device {
    Device::new(Transport::Rc, MEMORY)
}

/// Requester and responder with their time.
pub struct Rc {
    now: Instant,
    requester: Requester,
    responder: Responder,
    template: PathTemplate,
}

fn requester_config(line: &Line<'_>) -> RequesterConfig {
    RequesterConfig {
        qpn: Qpn::new(LOCAL_QPN),
        dest_qpn: Qpn::new(PEER_QPN),
        sq_psn: line.psn(),
        mtu: line.mtu(1024),
        max_rd_atomic: line.number("reads", 4) as u32,
        timeout: line.value("timeout").map(duration),
        adaptive_timeout: line.value("adaptive").map(duration),
        retry_cnt: line.number("retry", 7) as u8,
        rnr_retry: line.number("rnr_retry", 7) as u8,
        window_packets: line.number("window", 1 << 23) as u32,
        window_messages: line.number("messages", 1 << 20) as u32,
        ack_request_every: line.number("ack_request_every", 64) as u32,
        ack_request_at_window_end: !line.has("window_end_unasked"),
        probe_above: line.number("probe_above", u64::from(PROBE_ABOVE)) as u32,
        ack_request_phase: 0,
        timeout_stretch_max: 1,
        obey_credits: !line.has("ignore_credits"),
        migreq: line.has("migreq"),
        pkey: 0xffff,
    }
}

fn responder_config(line: &Line<'_>) -> ResponderConfig {
    ResponderConfig {
        qpn: Qpn::new(LOCAL_QPN),
        dest_qpn: Qpn::new(PEER_QPN),
        rq_psn: line.psn(),
        mtu: line.mtu(1024),
        max_dest_rd_atomic: line.number("dest_reads", 4) as u32,
        min_rnr_timer: line.number("min_rnr_timer", 1) as u8,
        ack_every: line.number("ack_every", 64) as u32,
        report_credits: line.has("report_credits"),
        migreq: line.has("migreq"),
        pkey: 0xffff,
    }
}

impl Halves for Rc {
    const TRANSPORT: Transport = Transport::Rc;
    const MEMORY: usize = MEMORY;

    fn new(config: &Line<'_>, device: &mut Device) -> Self {
        let mut requester = Requester::new(config.number("depth", 16) as u32, 4, 256);
        requester.start(requester_config(config));
        device.permits = !config.has("rdma_off");
        device.permits_atomics = !config.has("atomics_off");
        device.allows_atomics = !config.has("atomic_access_off");
        device.shift = config.number("shift", 0);
        if config.has("access_off") {
            device.remote = 0..0;
        }
        Rc {
            now: Instant::ZERO,
            requester,
            responder: Responder::new(responder_config(config)),
            template: template(),
        }
    }

    fn post(
        &mut self,
        wr: &SendWr<'_>,
        signal_all: bool,
        memory: &Memory,
    ) -> Result<(), SendRefused> {
        self.requester.post(wr, signal_all, memory)
    }

    fn transmit(&mut self, recv: &RecvQueue, device: &mut Device, wire: &mut Wire) -> bool {
        self.responder.transmit(recv, device, &self.template, wire)
            || self.requester.transmit(self.now, device, &self.template, wire)
    }

    fn receive(
        &mut self,
        packet: &Packet<'_>,
        payload: &Payload<'_>,
        recv: &mut RecvQueue,
        device: &mut Device,
    ) {
        let (bth, now, requester) = (packet.bth(), self.now, &mut self.requester);
        let aeth = packet.aeth();
        match (bth.opcode.verb(), &aeth) {
            (Some(Verb::Acknowledge), Some(aeth)) => {
                requester.handle_ack(now, bth.psn, aeth, device);
            }
            (Some(Verb::ReadResponse), aeth) => {
                let aeth = aeth.as_ref();
                requester.handle_read_response(now, bth.psn, bth.opcode, aeth, payload, device);
            }
            (Some(Verb::AtomicAcknowledge), Some(aeth)) => {
                let original = packet.atomic_ack_eth().expect("an AtomicAckETH").original;
                requester.handle_atomic_ack(now, bth.psn, aeth, original, device);
            }
            _ => self.responder.handle_request(packet, &bth, payload, recv, device),
        }
    }

    fn flush(&mut self, recv: &mut RecvQueue, device: &mut Device) {
        self.responder.flush(recv, device);
    }

    fn release(&mut self, recv: &mut RecvQueue) {
        self.responder.release(recv);
    }

    fn pause(&mut self, paused: bool) {
        self.requester.pause(paused);
    }

    fn is_drained(&self) -> bool {
        self.requester.is_drained()
    }

    fn is_failed(&self) -> bool {
        self.requester.is_failed()
    }

    fn fault(&self) -> Option<String> {
        self.responder.fault().map(|fault| format!("{fault:?}"))
    }

    fn run(&mut self, line: &Line<'_>, device: &mut Device) {
        match line.words[0] {
            "wait" => {
                self.now += duration(line.words[1]);
                self.requester.handle_timeout(self.now, device);
            }
            "adjust" => self.requester.adjust(|config| {
                config.rnr_retry = line.number("rnr_retry", config.rnr_retry.into()) as u8;
            }),
            other => panic!("no such event: {other}"),
        }
    }
}
