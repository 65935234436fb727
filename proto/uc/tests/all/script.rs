//! The lines that UC adds to wire scripts.
//!
//! ```text
//! recover                 the requester leaves SQE
//! idle   yes              the requester has nothing queued, or has (no)
//! ```

use longhaul_node::Payload;
use longhaul_uc::*;
use longhaul_units::Qpn;
use longhaul_wire::{Packet, Transport};
use longhaul_wire_script::{Device, Halves, LOCAL_QPN, Line, Memory, PEER_QPN, Wire, template};
use longhaul_work::{RecvQueue, SendRefused, SendWr};

pub const MEMORY: usize = 1 << 16;
pub type Qp = longhaul_wire_script::Qp<Uc>;

pub struct Uc {
    pub requester: Requester,
    pub responder: Responder,
}

impl Halves for Uc {
    const TRANSPORT: Transport = Transport::Uc;
    const MEMORY: usize = MEMORY;

    fn new(config: &Line<'_>, _: &mut Device) -> Self {
        let (qpn, dest_qpn) = (Qpn::new(LOCAL_QPN), Qpn::new(PEER_QPN));
        let (psn, mtu) = (config.psn(), config.mtu(256));
        let mut requester = Requester::new(16, 4, 512);
        requester.start(RequesterConfig {
            qpn,
            dest_qpn,
            sq_psn: psn,
            mtu,
            migreq: true,
            pkey: 0x9234,
        });
        let responder = Responder::new(ResponderConfig { qpn, dest_qpn, rq_psn: psn, mtu });
        Uc { requester, responder }
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
        let can = self.requester.can_transmit();
        let sent = self.requester.transmit(device, &template(), wire);
        assert!(can || !sent);
        sent
    }

    fn receive(
        &mut self,
        packet: &Packet<'_>,
        payload: &Payload<'_>,
        recv: &mut RecvQueue,
        device: &mut Device,
    ) {
        self.responder.handle_request(packet, &packet.bth(), payload, recv, device);
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

    fn run(&mut self, line: &Line<'_>, _: &mut Device) {
        match line.words[0] {
            "recover" => self.requester.recover(),
            "idle" => assert_eq!(self.requester.is_idle(), line.words[1] == "yes"),
            other => panic!("no such event: {other}"),
        }
    }
}
