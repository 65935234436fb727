//! Synthetic captures: timed packets between a requester and a responder.

use longhaul_doctor::report::{Finding, Flow};
use longhaul_doctor::{Doctor, Options, Report};
use longhaul_units::{Msn, Psn, Qpn, RKey};
use longhaul_wire::mad::{Ece, Header, MAD_LEN, Message, Rep, Req, ReqPath, TransportService};
use longhaul_wire::pcap::{LinkType, Record};
use longhaul_wire::{
    Aeth, Bth, Deth, Head, ICRC_LEN, MacAddr, Opcode, Path, PathTemplate, Reth, Syndrome, icrc,
    split,
};
use std::net::IpAddr;

/// Destination QPs of requests and of responses.
pub const RESPONDER_QP: u32 = 0x1ad;
pub const REQUESTER_QP: u32 = 0x1ae;

/// One microsecond.
pub const US: u64 = 1000;
/// One millisecond.
pub const MS: u64 = 1_000_000;

/// One frame of a capture.
#[derive(Clone)]
pub struct Captured {
    pub at_ns: u64,
    pub bytes: Vec<u8>,
    pub original_len: usize,
    pub link_type: LinkType,
}

/// A capture that grows.
#[derive(Clone, Default)]
pub struct Script {
    pub frames: Vec<Captured>,
    /// Requests come from Linux rxe, which leaves MigReq clear.
    pub is_rxe: bool,
}

pub fn template(forward: bool, traffic_class: u8) -> PathTemplate {
    let ip = |last| IpAddr::from([192, 168, 101, last]);
    let path = Path {
        source_mac: MacAddr([2, 0, 0, 0, 0, 1]),
        destination_mac: MacAddr([2, 0, 0, 0, 0, 2]),
        vlan: None,
        source_ip: ip(11),
        destination_ip: ip(10),
        traffic_class,
        hop_limit: 64,
        flow_label: 0,
        udp_source_port: 57_644,
    };
    PathTemplate::new(&if forward { path } else { path.reversed() })
}

/// A frame with a payload of zeros and a correct ICRC.
pub fn frame(
    template: &PathTemplate,
    bth: &Bth,
    extend: impl FnOnce(&mut Head),
    payload: usize,
) -> Vec<u8> {
    frame_of(template, bth, extend, &vec![0; payload])
}

/// A frame with a correct ICRC.
pub fn frame_of(
    template: &PathTemplate,
    bth: &Bth,
    extend: impl FnOnce(&mut Head),
    payload: &[u8],
) -> Vec<u8> {
    let mut head = Head::begin(template, bth);
    extend(&mut head);
    let pad = head.finish(template, payload.len());
    let mut bytes = [head.bytes(), payload].concat();
    bytes.resize(bytes.len() + usize::from(pad) + ICRC_LEN, 0);
    let found = split(&bytes, bytes.len()).unwrap();
    let longhaul_wire::Split::Roce { layout, .. } = found else { panic!("not RoCEv2") };
    let end = found.end().unwrap();
    let crc = icrc::of_frame(&bytes, &layout, end);
    bytes[end - ICRC_LEN..end].copy_from_slice(&crc);
    bytes
}

impl Script {
    pub fn add(&mut self, at_ns: u64, bytes: Vec<u8>) {
        let original_len = bytes.len();
        self.frames.push(Captured { at_ns, bytes, original_len, link_type: LinkType::ETHERNET });
    }

    /// A message of the connection manager.
    fn manage(&mut self, forward: bool, message: Message<'_>, ece: Ece) {
        let mut mad = [0; MAD_LEN];
        message.write(&Header::new(9), &mut mad);
        ece.write(&mut mad, message.attribute());
        let bth = Bth::new(Opcode::UD_SEND_ONLY, Qpn::GSI, Psn::new(0));
        let deth = Deth { qkey: 0x8001_0000, reserved_8: 0, source_qp: Qpn::GSI };
        self.add(0, frame_of(&template(forward, 0), &bth, |head| head.push_deth(&deth), &mad));
    }

    /// Sets up the connection through the connection manager, with this local ACK timeout code.
    pub fn connect(&mut self, ack_timeout: u8) {
        self.connect_with(ack_timeout, [Ece::NONE; 2]);
    }

    /// The same, with the ECE of REQ and REP.
    pub fn connect_with(&mut self, ack_timeout: u8, ece: [Ece; 2]) {
        let req = Req {
            local_comm_id: 1,
            service_id: 0,
            ca_guid: 0,
            qkey: 0,
            qpn: Qpn::new(REQUESTER_QP),
            responder_resources: 1,
            initiator_depth: 1,
            remote_response_timeout: 20,
            transport: TransportService::Rc,
            flow_control: true,
            starting_psn: Psn::new(0),
            local_response_timeout: 20,
            retry_count: 7,
            pkey: 0xffff,
            path_mtu: 5,
            rdc_exists: false,
            rnr_retry_count: 7,
            max_cm_retries: 15,
            srq: false,
            primary: ReqPath { ack_timeout, ..ReqPath::default() },
            alternate: ReqPath::default(),
            sap_supported: false,
            private_data: &[],
        };
        let rep = Rep {
            local_comm_id: 2,
            remote_comm_id: req.local_comm_id,
            qkey: 0,
            qpn: Qpn::new(RESPONDER_QP),
            ee_context: 0,
            starting_psn: Psn::new(0),
            responder_resources: 1,
            initiator_depth: 1,
            target_ack_delay: 0,
            failover_accepted: 0,
            flow_control: true,
            rnr_retry_count: 7,
            srq: false,
            ca_guid: 0,
            private_data: &[],
        };
        self.manage(true, Message::Req(req), ece[0]);
        self.manage(false, Message::Rep(rep), ece[1]);
    }

    /// Adds a request; `dma_len` is for its RETH, if the opcode has one.
    pub fn request(&mut self, at_ns: u64, opcode: Opcode, psn: u32, payload: usize, dma_len: u32) {
        self.marked_request(at_ns, opcode, psn, payload, dma_len, 0);
    }

    pub fn marked_request(
        &mut self,
        at_ns: u64,
        opcode: Opcode,
        psn: u32,
        payload: usize,
        dma_len: u32,
        class: u8,
    ) {
        let bth =
            Bth { migreq: !self.is_rxe, ..Bth::new(opcode, Qpn::new(RESPONDER_QP), Psn::new(psn)) };
        let reth = Reth { virtual_address: 0x1000, rkey: RKey(7), len: dma_len };
        let extend = |head: &mut Head| {
            if opcode.has_reth() {
                head.push_reth(&reth);
            }
        };
        self.add(at_ns, frame(&template(true, class), &bth, extend, payload));
    }

    pub fn write(&mut self, at_ns: u64, psn: u32, payload: usize) {
        self.request(at_ns, Opcode::RC_WRITE_ONLY, psn, payload, payload as u32);
    }

    pub fn answer(
        &mut self,
        at_ns: u64,
        opcode: Opcode,
        psn: u32,
        syndrome: Syndrome,
        payload: usize,
    ) {
        let bth = Bth::new(opcode, Qpn::new(REQUESTER_QP), Psn::new(psn));
        let extend = |head: &mut Head| {
            if opcode.has_aeth() {
                head.push_aeth(&Aeth { syndrome, msn: Msn::new(psn) });
            }
        };
        self.add(at_ns, frame(&template(false, 0), &bth, extend, payload));
    }

    pub fn ack(&mut self, at_ns: u64, psn: u32) {
        self.answer(at_ns, Opcode::RC_ACK, psn, Syndrome::ACK_UNLIMITED, 0);
    }

    pub fn nak(&mut self, at_ns: u64, psn: u32, syndrome: Syndrome) {
        self.answer(at_ns, Opcode::RC_ACK, psn, syndrome, 0);
    }

    pub fn read_response(&mut self, at_ns: u64, psn: u32, payload: usize) {
        self.answer(at_ns, Opcode::RC_READ_RESPONSE_ONLY, psn, Syndrome::ACK_UNLIMITED, payload);
    }

    /// A congestion notification to the requester.
    pub fn cnp(&mut self, at_ns: u64) {
        let bth = Bth { becn: true, ..Bth::new(Opcode::CNP, Qpn::new(REQUESTER_QP), Psn::new(0)) };
        self.add(at_ns, frame(&template(false, 0), &bth, |_| {}, 16));
    }

    /// The report, packets in the order of their times.
    pub fn report(&self) -> Report {
        self.report_with(Options::default())
    }

    pub fn report_with(&self, options: Options) -> Report {
        let mut frames: Vec<&Captured> = self.frames.iter().collect();
        frames.sort_by_key(|frame| frame.at_ns);
        let mut doctor = Doctor::new(options);
        for frame in frames {
            doctor.feed(&Record {
                timestamp_ns: Some(1_700_000_000_000_000_000 + frame.at_ns),
                link_type: frame.link_type,
                original_len: frame.original_len,
                data: &frame.bytes,
            });
        }
        doctor.finish()
    }

    /// The only flow's report.
    pub fn flow(&self) -> Flow {
        let mut report = self.report();
        assert_eq!(report.flows.len(), 1, "{:#?}", report.flows);
        report.flows.remove(0)
    }
}

/// The finding of `rule`; fails when there is none.
pub fn found<'a>(flow: &'a Flow, rule: &str) -> &'a Finding {
    let finding = flow.findings.iter().find(|finding| finding.rule == rule);
    finding.unwrap_or_else(|| panic!("no {rule} in {:#?}", flow.findings))
}

pub fn rules(flow: &Flow) -> Vec<&'static str> {
    flow.findings.iter().map(|finding| finding.rule).collect()
}
