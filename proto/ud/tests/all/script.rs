//! The lines that UD adds to wire scripts.
//!
//! ```text
//! config qkey=17                   the QP's QKey
//! post   ah=1 qpn=34 qkey=17       address handle 1 leads to an IPv4 peer, 2 to an IPv6 peer
//! in     send.only qkey=17 v6      a datagram from an IPv6 peer
//! qkey   18                        changes the QP's QKey
//! header at=1000 from=10.0.0.1     the first 40 bytes of a receive
//! recover                          the requester leaves SQE
//! ```

use longhaul_node::Payload;
use longhaul_ud::*;
use longhaul_units::Qpn;
use longhaul_wire::{Packet, Transport};
use longhaul_wire_script::{Halves, Line, Memory, Wire, holds, template_v6};
use longhaul_work::{RecvQueue, SendRefused, SendWr};

pub use longhaul_wire_script::{Device, KEY, LOCAL_QPN, template};

pub const MEMORY: usize = 1 << 16;

/// A device with address handles 1 (IPv4) and 2 (IPv6).
pub fn device() -> Device {
    let mut device = Device::new(Transport::Ud, MEMORY);
    device.paths = vec![template(), template_v6()];
    device
}

pub struct Ud {
    requester: Requester,
    responder: Responder,
}

impl Ud {
    /// The fields of the network header at `at`, as words.
    fn header(device: &Device, at: usize) -> String {
        let area = device.memory.0[at..at + GRH_LEN].try_into().unwrap();
        let h = NetworkHeader::read(area).expect("a network header");
        let (class, hops, label) = (h.traffic_class, h.hop_limit, h.flow_label);
        format!("from={} to={} class={class} hops={hops} label={label}", h.source, h.destination)
    }
}

impl Halves for Ud {
    const TRANSPORT: Transport = Transport::Ud;
    const MEMORY: usize = MEMORY;

    fn new(config: &Line<'_>, device: &mut Device) -> Self {
        device.paths = vec![template(), template_v6()];
        let (qpn, qkey, mtu) =
            (Qpn::new(LOCAL_QPN), config.number("qkey", 17) as u32, config.mtu(1024));
        let mut requester = Requester::new(config.number("depth", 16) as u32, 4, 256);
        requester.start(RequesterConfig {
            qpn,
            qkey,
            sq_psn: config.psn(),
            mtu,
            migreq: config.has("migreq"),
            pkey: 0x8001,
        });
        Ud { requester, responder: Responder::new(ResponderConfig { qpn, qkey, mtu }) }
    }

    fn post(
        &mut self,
        wr: &SendWr<'_>,
        signal_all: bool,
        memory: &Memory,
    ) -> Result<(), SendRefused> {
        self.requester.post(wr, signal_all, memory)
    }

    fn transmit(&mut self, _: &RecvQueue, device: &mut Device, wire: &mut Wire) -> bool {
        let sent = self.requester.transmit(device, wire);
        for packet in &wire.0 {
            assert!(!Packet::parse(&packet.head).unwrap().unwrap().bth().ack_request);
        }
        sent
    }

    fn receive(
        &mut self,
        packet: &Packet<'_>,
        payload: &Payload<'_>,
        recv: &mut RecvQueue,
        device: &mut Device,
    ) {
        self.responder.handle_datagram(packet, &packet.bth(), payload, recv, device);
    }

    fn flush(&mut self, recv: &mut RecvQueue, device: &mut Device) {
        self.requester.flush(device);
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
            "header" => {
                holds(&line.words[2..], &Ud::header(device, line.number("at", 0) as usize));
            }
            "qkey" => {
                let qkey = line.words[1].parse().unwrap();
                self.requester.set_qkey(qkey);
                self.responder.set_qkey(qkey);
            }
            "recover" => self.requester.recover(),
            other => panic!("no such event: {other}"),
        }
    }
}
