//! RoCEv2 and other packets sent through one direction of a link in virtual time.

use longhaul_link::{Arrival, DropReason, LinkConfig, Rule, Wire};
use longhaul_node::{Frame, Payload, Side, Trailer};
use longhaul_units::{Duration, Instant, Msn, Psn, Qpn, RKey};
use longhaul_wire::{
    Aeth, Bth, Deth, Head, MacAddr, NakCode, Opcode, Path, PathTemplate, Reth, Syndrome,
};
use std::net::IpAddr;

/// One RoCEv2 packet.
#[derive(Clone, Copy, Debug)]
pub struct Sample {
    pub opcode: Opcode,
    pub syndrome: Syndrome,
    pub qpn: u32,
    pub psn: u32,
    pub source: IpAddr,
    pub destination: IpAddr,
    pub port: u16,
    pub traffic_class: u8,
    pub payload_len: usize,
}

pub const WRITE: Sample = Sample {
    opcode: Opcode::RC_WRITE_MIDDLE,
    syndrome: Syndrome::ACK_UNLIMITED,
    qpn: 0x17,
    psn: 100,
    source: IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 1)),
    destination: IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 2)),
    port: 0xc000,
    traffic_class: 26 << 2 | 2,
    payload_len: 256,
};

pub fn of(opcode: Opcode) -> Sample {
    Sample { opcode, payload_len: 0, ..WRITE }
}

pub fn acknowledge(syndrome: Syndrome) -> Sample {
    Sample { syndrome, ..of(Opcode::RC_ACK) }
}

pub const SEQUENCE_NAK: Syndrome = Syndrome::Nak(NakCode::PsnSequence);

impl Sample {
    pub fn head(&self) -> Head {
        let template = PathTemplate::new(&Path {
            source_mac: MacAddr([2, 0, 0, 0, 0, 1]),
            destination_mac: MacAddr([2, 0, 0, 0, 0, 2]),
            vlan: None,
            source_ip: self.source,
            destination_ip: self.destination,
            traffic_class: self.traffic_class,
            hop_limit: 64,
            flow_label: 0,
            udp_source_port: self.port,
        });
        let bth = Bth::new(self.opcode, Qpn::new(self.qpn), Psn::new(self.psn));
        let mut head = Head::begin(&template, &bth);
        if self.opcode.has_reth() {
            head.push_reth(&Reth { virtual_address: 0, rkey: RKey(1), len: 4096 });
        }
        if self.opcode.has_aeth() {
            head.push_aeth(&Aeth { syndrome: self.syndrome, msn: Msn::new(7) });
        }
        if self.opcode.has_deth() {
            head.push_deth(&Deth { qkey: 1, reserved_8: 0, source_qp: Qpn::new(1) });
        }
        head.finish(&template, self.payload_len);
        head
    }

    /// Calls `then` with the packet, with a zero payload and a valid ICRC.
    pub fn with<T>(&self, then: impl FnOnce(&Frame<'_>) -> T) -> T {
        let head = self.head();
        let payload = vec![0; self.payload_len];
        let trailer = Trailer::Sealed { pad_len: 0 };
        then(&Frame { head: head.bytes(), payload: Payload::Bytes(&payload), trailer })
    }

    /// All its bytes.
    pub fn bytes(&self) -> Vec<u8> {
        self.with(|frame| {
            let mut bytes = vec![0; frame.len()];
            frame.write_to(&mut bytes);
            bytes
        })
    }
}

/// One direction, with its clock.
pub struct Run {
    pub wire: Wire,
    pub now: Instant,
}

impl Run {
    pub fn new(config: &LinkConfig, entry: Side) -> Self {
        Run { wire: Wire::new(config, entry, config.seed).unwrap(), now: Instant::ZERO }
    }

    /// A run with these rules, entering on side a, without delay or rate.
    pub fn with_rules(rules: &[&str]) -> Self {
        Run::new(&ruled(rules), 0)
    }

    pub fn send(&mut self, sample: &Sample) -> Result<Arrival, DropReason> {
        sample.with(|frame| self.send_frame(frame))
    }

    pub fn send_frame(&mut self, frame: &Frame<'_>) -> Result<Arrival, DropReason> {
        self.wire.enter(self.now, frame)
    }

    pub fn wait(&mut self, time: Duration) {
        self.now += time;
    }

    /// Frames that the rule at `index` selected, and acted on.
    pub fn counted(&self, index: usize) -> (u64, u64) {
        let counters = self.wire.rule_counters()[index];
        (counters.selected_frames, counters.struck_frames)
    }
}

pub fn rule(text: &str) -> Rule {
    text.parse().unwrap_or_else(|e| panic!("{e}"))
}

pub fn ruled(rules: &[&str]) -> LinkConfig {
    LinkConfig {
        rules: rules.iter().map(|text| rule(text)).collect(),
        seed: 3,
        ..LinkConfig::default()
    }
}
