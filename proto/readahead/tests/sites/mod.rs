//! Two software RNICs with a box at each site: an initiator whose commands announce their data, and
//! a target that may READ it.
//!
//! Between LAN and WAN every frame is serialised, as on a wire, so that frames built by a box must
//! be valid to the ICRC.

#![allow(dead_code, reason = "each test binary uses a part")]

pub mod program;

use longhaul_accel::{Accelerator, Mode, Policy};
use longhaul_link::{Link, LinkConfig};
use longhaul_node::{
    Chain, Deadline, Frame, Gather, Mirrored, Node, Payload, Side, Trailer, Transmit,
};
use longhaul_readahead::{Config, Protocol, ReadAhead};
use longhaul_rnic::{Access, BringUp, CqId, Memory, MrKeys, Mtu, QpInit, QpKind, Rnic};
use longhaul_units::{BitRate, Duration, Instant, Psn, Qpn, RKey};
use longhaul_wan::{PathConfig, Rate, Seed, Transport};
use longhaul_wire::mad::{
    GSI_QKEY, Header, MAD_LEN, Message, RdmaCmHeader, Rep, Req, ReqPath, ServiceId,
    TransportService,
};
use longhaul_wire::{Bth, Deth, HEAD_MAX, Head, MacAddr, Opcode, Packet, Path, PathTemplate};
use std::cell::{Cell, RefCell};
use std::net::IpAddr;
use std::rc::Rc;

/// First address of each host's memory.
pub const BASE: u64 = 0x7000_0000_0000;
pub const INITIATOR: usize = 0;
pub const TARGET: usize = 1;
pub const MEMORY: usize = 16 << 20;

/// A host's memory.
pub struct Bytes(pub Vec<u8>);

impl Gather for Bytes {
    fn gather(&self, address: u64, out: &mut [u8]) {
        let at = (address - BASE) as usize;
        out.copy_from_slice(&self.0[at..at + out.len()]);
    }
}

impl Memory for Bytes {
    fn scatter(&mut self, address: u64, payload: &Payload<'_>) {
        let at = (address - BASE) as usize;
        payload.copy_to(&mut self.0[at..at + payload.len()]);
    }

    fn fetch_add(&mut self, _address: u64, _add: u64) -> u64 {
        unimplemented!("no atomics here")
    }

    fn compare_swap(&mut self, _address: u64, _compare: u64, _swap: u64) -> u64 {
        unimplemented!("no atomics here")
    }
}

/// A node to which the test keeps a reference; frames to it are serialised.
///
/// Hosts ignore the connection manager: the connection exists already.
pub struct Held<N> {
    node: Rc<RefCell<N>>,
    is_host: bool,
    /// READ requests to it that are still to be lost.
    lost_reads: Rc<Cell<u32>>,
}

impl<N> Held<N> {
    fn new(node: &Rc<RefCell<N>>, is_host: bool) -> Self {
        Held { node: node.clone(), is_host, lost_reads: Rc::default() }
    }

    fn is_lost(&self, packet: &Packet<'_>) -> bool {
        let left = self.lost_reads.get();
        let is_lost = packet.opcode() == Opcode::RC_READ_REQUEST && left > 0;
        self.lost_reads.set(left - u32::from(is_lost));
        is_lost || packet.dest_qp() == Qpn::GSI
    }
}

impl<N: Node> Node for Held<N> {
    fn handle_frame(&mut self, now: Instant, side: Side, frame: &Frame<'_>) {
        let packet = Packet::parse(frame.head).ok().flatten();
        if self.is_host && packet.is_some_and(|packet| self.is_lost(&packet)) {
            return;
        }
        let mut bytes = vec![0; frame.len()];
        frame.write_to(&mut bytes);
        let head = Head::copy_of(&bytes);
        let node = &mut *self.node.borrow_mut();
        match Frame::received(&head, &bytes) {
            Ok(frame) => node.handle_frame(now, side, &frame),
            Err(_) => node.handle_frame(now, side, &Frame::opaque(&bytes)),
        }
    }

    fn handle_timeout(&mut self, now: Instant) {
        self.node.borrow_mut().handle_timeout(now);
    }

    fn poll_transmit(&mut self, now: Instant, out: &mut dyn Transmit) {
        self.node.borrow_mut().poll_transmit(now, out);
    }

    fn poll_timeout(&self) -> Option<Deadline> {
        self.node.borrow().poll_timeout()
    }

    fn intake(&self, side: Side) -> usize {
        self.node.borrow().intake(side)
    }
}

/// What connects the two LANs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Between {
    /// A path without loss.
    Path,
    /// A whole box at each site.
    Boxes(Mode),
}

#[derive(Clone, Debug)]
pub struct Setup {
    pub between: Between,
    /// Read-ahead of each site.
    pub read_ahead: [Config; 2],
    /// One-way delay.
    pub delay: Duration,
    pub wan_loss: f64,
    pub lan_loss: [f64; 2],
    pub mtu: Mtu,
    /// READs that the initiator's NIC serves at once.
    pub reads_max: u8,
    pub first_psns: [u32; 2],
    pub seed: u64,
}

impl Default for Setup {
    fn default() -> Self {
        let config = Config::of(&Protocol::ALL);
        Setup {
            between: Between::Path,
            read_ahead: [config.clone(), config],
            delay: Duration::from_ms(25),
            wan_loss: 0.0,
            lan_loss: [0.0; 2],
            mtu: Mtu::B1024,
            reads_max: 16,
            first_psns: [0xff_fff0, 0xff_ffe0],
            seed: 1,
        }
    }
}

/// One host.
pub struct Host {
    pub rnic: Rc<RefCell<Rnic<Bytes>>>,
    pub cq: CqId,
    pub qpn: Qpn,
    pub keys: MrKeys,
}

/// Both sites, and the path between them.
pub struct Sites {
    pub now: Instant,
    pub hosts: [Host; 2],
    pub read_ahead: [Rc<RefCell<ReadAhead>>; 2],
    /// READ requests to the initiator that are still to be lost.
    pub lost_reads: Rc<Cell<u32>>,
    row: Box<dyn Node>,
    setup: Setup,
}

pub fn ip(host: usize) -> IpAddr {
    IpAddr::from([10, 77, 0, host as u8 + 1])
}

fn mac(host: usize) -> MacAddr {
    MacAddr([2, 0, 10, 77, 0, host as u8 + 1])
}

fn rate() -> BitRate {
    BitRate::from_gbps(10).expect("not zero")
}

fn join(left: Box<dyn Node>, right: Box<dyn Node>) -> Box<dyn Node> {
    Box::new(Chain::new(Some(left), Some(right)))
}

fn link(delay: Duration, loss: f64, seed: u64) -> Box<dyn Node> {
    let config = LinkConfig { delay, rate: Some(rate()), loss, seed, ..LinkConfig::default() };
    Box::new(Link::new(config).expect("valid"))
}

/// Both halves and the transport, seen from the LAN.
fn whole_box(setup: &Setup, mode: Mode, number: u64) -> Box<dyn Node> {
    let config = longhaul_accel::Config {
        policy: Policy::all(mode),
        lan_pacing: longhaul_accel::Pacing::Own(rate()),
        ..longhaul_accel::Config::default()
    };
    let [near, far] =
        config.halves(setup.delay.times(2)).map(|half| Accelerator::new(half).expect("valid"));
    let transport = Transport::new(longhaul_wan::Config {
        paths: vec![PathConfig { rate: Rate::Fixed(rate()), ..PathConfig::default() }],
        box_id: 1 + number,
        seed: Seed::of_scenario(setup.seed << 8 | number),
        ..longhaul_wan::Config::default()
    });
    let behind = Chain::new(Some(Mirrored(far)), Some(transport.expect("valid")));
    Box::new(Chain::new(Some(near), Some(behind)))
}

impl Host {
    fn open(host: usize) -> Host {
        let mut config = longhaul_rnic::Config::new(mac(host), ip(host));
        config.port_rate = Some(rate());
        let mut rnic = Rnic::new(config, Bytes(vec![0; MEMORY]));
        let pd = rnic.alloc_pd().unwrap();
        let cq = rnic.create_cq(4096).unwrap();
        let keys = rnic.reg_mr(pd, BASE, MEMORY as u64, BASE, Access::ALL).unwrap();
        let init = QpInit::new(QpKind::Rc, pd, cq, 512);
        let qpn = rnic.create_qp(&init).unwrap();
        Host { rnic: Rc::new(RefCell::new(rnic)), cq, qpn, keys }
    }
}

impl Sites {
    pub fn new(setup: &Setup) -> Sites {
        let hosts = [INITIATOR, TARGET].map(Host::open);
        let read_ahead = [INITIATOR, TARGET].map(|site| {
            let config = setup.read_ahead[site].clone();
            Rc::new(RefCell::new(ReadAhead::new(config).expect("valid")))
        });
        let lost_reads = Rc::new(Cell::new(0));
        let site = |number: usize| {
            let mut host = Held::new(&hosts[number].rnic, true);
            if number == INITIATOR {
                host.lost_reads = lost_reads.clone();
            }
            let mut row: Box<dyn Node> = Box::new(Mirrored(host));
            let seed = setup.seed << 4 | number as u64;
            row = join(row, link(Duration::from_us(2), setup.lan_loss[number], seed));
            row = join(row, Box::new(Held::new(&read_ahead[number], false)));
            match setup.between {
                Between::Path => row,
                Between::Boxes(mode) => join(row, whole_box(setup, mode, number as u64)),
            }
        };
        let [near, far] = [site(INITIATOR), site(TARGET)];
        let wan = link(setup.delay, setup.wan_loss, setup.seed);
        let row = join(join(near, wan), Box::new(Mirrored(far)));
        let mut sites = Sites {
            now: Instant::from_ns(1000),
            hosts,
            read_ahead,
            lost_reads,
            row,
            setup: setup.clone(),
        };
        sites.connect();
        sites
    }

    pub fn counters(&self, site: usize) -> longhaul_readahead::Counters {
        *self.read_ahead[site].borrow().counters()
    }

    pub fn rkey(&self, host: usize) -> RKey {
        self.hosts[host].keys.rkey
    }

    fn connect(&mut self) {
        let reads_max = self.setup.reads_max;
        for host in [INITIATOR, TARGET] {
            let peer = 1 - host;
            let to = BringUp {
                path_mtu: self.setup.mtu,
                sq_psn: Psn::new(self.setup.first_psns[host]),
                rq_psn: Psn::new(self.setup.first_psns[peer]),
                max_rd_atomic: reads_max,
                max_dest_rd_atomic: reads_max,
                min_rnr_timer: 12,
                timeout: 16,
                ..BringUp::to(ip(peer), self.hosts[peer].qpn)
            };
            let rnic = &mut *self.hosts[host].rnic.borrow_mut();
            rnic.bring_up_qp(self.now, self.hosts[host].qpn, &to).unwrap();
        }
        self.show_connection();
    }

    /// Sends the connection manager's messages through all boxes, as for a new connection.
    fn show_connection(&mut self) {
        let [initiator, target] = [INITIATOR, TARGET].map(|host| self.hosts[host].qpn);
        let said = [0, 0, 1, 0, 128, 0, 127, 0];
        let header =
            RdmaCmHeader { source_port: 999, source: ip(INITIATOR), destination: ip(TARGET) };
        let private_data = header.with_user_data(&said).expect("it fits");
        let req = Message::Req(Req {
            local_comm_id: 77,
            service_id: ServiceId::tcp(4420),
            ca_guid: 1,
            qkey: 0,
            qpn: initiator,
            responder_resources: self.setup.reads_max,
            initiator_depth: 0,
            remote_response_timeout: 20,
            transport: TransportService::Rc,
            flow_control: false,
            starting_psn: Psn::new(self.setup.first_psns[TARGET]),
            local_response_timeout: 20,
            retry_count: 7,
            pkey: 0xffff,
            path_mtu: self.setup.mtu.code(),
            rdc_exists: false,
            rnr_retry_count: 7,
            max_cm_retries: 15,
            srq: false,
            primary: ReqPath::default(),
            alternate: ReqPath::default(),
            sap_supported: false,
            private_data: &private_data,
        });
        let rep = Message::Rep(Rep {
            local_comm_id: 88,
            remote_comm_id: 77,
            qkey: 0,
            qpn: target,
            ee_context: 0,
            starting_psn: Psn::new(self.setup.first_psns[INITIATOR]),
            responder_resources: 0,
            initiator_depth: self.setup.reads_max,
            target_ack_delay: 0,
            failover_accepted: 0,
            flow_control: false,
            rnr_retry_count: 7,
            srq: false,
            ca_guid: 2,
            private_data: &[],
        });
        for (from, message) in [(INITIATOR, req), (TARGET, rep)] {
            self.inject(from, &message);
            let until = self.now + self.setup.delay.times(3);
            while self.step(until) {}
        }
    }

    /// Injects `message` as if sent by the host, on its box's LAN side.
    fn inject(&mut self, from: usize, message: &Message<'_>) {
        let path = PathTemplate::new(&Path {
            source_mac: mac(from),
            destination_mac: mac(1 - from),
            vlan: None,
            source_ip: ip(from),
            destination_ip: ip(1 - from),
            traffic_class: 0,
            hop_limit: 64,
            flow_label: 0,
            udp_source_port: 0xc123,
        });
        let mut mad = [0; MAD_LEN];
        message.write(&Header::new(5), &mut mad);
        let mut head = Head::begin(&path, &Bth::new(Opcode::UD_SEND_ONLY, Qpn::GSI, Psn::new(0)));
        head.push_deth(&Deth { qkey: GSI_QKEY, reserved_8: 0, source_qp: Qpn::GSI });
        let pad_len = head.finish(&path, mad.len());
        let frame = Frame {
            head: head.bytes(),
            payload: Payload::Bytes(&mad),
            trailer: Trailer::Sealed { pad_len },
        };
        assert!(frame.head.len() <= HEAD_MAX);
        Held::new(&self.read_ahead[from], false).handle_frame(
            self.now,
            longhaul_readahead::LAN,
            &frame,
        );
    }

    /// Lets all nodes send, and advances to the next event before `end`. Returns `false` if there
    /// is none.
    pub fn step(&mut self, end: Instant) -> bool {
        self.row.poll_transmit(self.now, &mut Nowhere);
        let due = self.row.poll_timeout().filter(|due| due.at <= end);
        self.now = due.map_or(end, |due| due.at.max(self.now));
        if due.is_some() {
            self.row.handle_timeout(self.now);
            self.row.poll_transmit(self.now, &mut Nowhere);
        }
        due.is_some()
    }
}

/// Rejects frames that would leave the row.
struct Nowhere;

impl Transmit for Nowhere {
    fn room(&mut self, _side: Side) -> usize {
        0
    }

    fn transmit(&mut self, _side: Side, _frame: &Frame<'_>) {
        unreachable!("hosts have one side")
    }
}
