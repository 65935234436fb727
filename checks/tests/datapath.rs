//! Allocations while traffic passes over real rings, accelerators, fibres and paired boxes, and
//! between two ends of queue pairs with software RNIC, turns and port: none, once warm. Only one
//! test may read the counts, so there is only one here.

use longhaul_accel::{Accelerator, Config, FlowState};
use longhaul_checks::RuntimeDir;
use longhaul_checks::counting::Counting;
use longhaul_datapath::{
    Bridge, End, Load, LoadConfig, NodeStage, Operation, Role, Row, Seen, Stage, TransferConfig,
};
use longhaul_link::{Link, LinkConfig};
use longhaul_memif::{MemifConfig, MemifPort};
use longhaul_port::loopback::{self, LoopbackPort};
use longhaul_port::{LinkState, Port};
use longhaul_rnic::Mtu;
use longhaul_seal::{PeerConfig, PrivateKey, Seed};
use longhaul_units::{BitRate, Duration};
use longhaul_wan_box::{Identity, Sizing, WanBox};

#[global_allocator]
static ALLOCATOR: Counting = Counting::new();

/// Packets of a stretch, and the number of stretches within which several consecutive ones must be
/// free of allocations: tables and pools grow to this load's size first.
const STRETCH: u64 = 10_000;
const STRETCHES_MAX: usize = 200;
const IN_A_ROW: usize = 4;

fn ring(name: &str) -> (LoopbackPort, LoopbackPort) {
    loopback::pair(name, 256, 4608).unwrap()
}

fn whole(number: u8, is_sealed: bool, delay: Duration) -> WanBox {
    let sizing = Sizing { delay: Some(delay), ..Sizing::default() };
    let accelerator = Config { seed: number.into(), ..sizing.accelerator() };
    let transport = sizing.transport(Identity::of_scenario(number.into()), 0);
    let config = longhaul_wan_box::Config::whole(accelerator, transport, sizing.round_trip());
    let key = |number: u8| PrivateKey::generate(&Seed::new([number; 32]));
    let seal = is_sealed.then(|| {
        let peer = PeerConfig {
            name: "far".into(),
            public_key: key(3 - number).public(),
            preshared_key: None,
        };
        longhaul_seal::Config::new(key(number), vec![peer], Seed::new([10 + number; 32]))
    });
    WanBox::new(config.sealed(seal)).unwrap()
}

fn terminated(accelerator: &Accelerator) -> Seen {
    let count = accelerator.flows().filter(|flow| flow.state == FlowState::Terminated).count();
    Seen { ready_flows: Some(count as u32), ..Seen::default() }
}

fn near_of(whole: &WanBox) -> Seen {
    let mut seen = terminated(whole.near());
    if !whole
        .transport()
        .is_some_and(|transport| transport.sessions().any(|session| session.is_open))
    {
        seen.ready_flows = Some(0);
    }
    seen
}

fn nothing_to_say<N>(_node: &N) -> Seen {
    Seen::default()
}

#[derive(Clone, Copy, Debug)]
enum Between {
    Bridge,
    Accelerator,
    Link { delay: Duration },
    Paired { is_sealed: bool, delay: Duration },
}

/// The stages between the requesters' ring and the responders'.
fn stages(what: Between, a: LoopbackPort, b: LoopbackPort) -> Vec<Box<dyn Stage>> {
    match what {
        Between::Bridge => vec![Box::new(Bridge::new([a, b]))],
        Between::Accelerator => {
            let node = Accelerator::new(Config::default()).unwrap();
            vec![Box::new(NodeStage::new("accelerator", node, vec![a, b], terminated))]
        }
        Between::Link { delay } => {
            // So slow that the maximum in flight is soon reached.
            let rate = BitRate::from_gbps(1);
            let node = Link::new(LinkConfig { delay, rate, ..LinkConfig::default() }).unwrap();
            vec![Box::new(NodeStage::new("link", node, vec![a, b], nothing_to_say))]
        }
        Between::Paired { is_sealed, delay } => {
            let ((c, d), (e, f)) = (ring("near"), ring("far"));
            let link = Link::new(LinkConfig { delay, ..LinkConfig::default() }).unwrap();
            vec![
                Box::new(NodeStage::new("near", whole(1, is_sealed, delay), vec![a, c], near_of)),
                Box::new(NodeStage::new("path", link, vec![d, e], nothing_to_say)),
                Box::new(NodeStage::new(
                    "far",
                    whole(2, is_sealed, delay),
                    vec![b, f],
                    nothing_to_say,
                )),
            ]
        }
    }
}

/// Runs a stretch. Returns the number of allocations.
fn stretch(row: &mut Row<LoopbackPort>) -> u64 {
    let (before, until) = (ALLOCATOR.calls(), row.load().counters().arrived + STRETCH);
    while row.load().counters().arrived < until {
        row.round().unwrap();
    }
    ALLOCATOR.calls() - before
}

/// Repeats `stretch`, which returns its allocations, until several in a row have none.
fn assert_steady(what: &str, mut stretch: impl FnMut() -> u64) {
    let mut allocated = Vec::with_capacity(STRETCHES_MAX);
    let is_steady = |allocated: &[u64]| {
        allocated.len() >= IN_A_ROW
            && allocated.iter().rev().take(IN_A_ROW).all(|&calls| calls == 0)
    };
    while allocated.len() < STRETCHES_MAX && !is_steady(&allocated) {
        allocated.push(stretch());
    }
    println!("{what}: allocations for {STRETCH} packets each: {allocated:?}");
    assert!(is_steady(&allocated), "{what}: {allocated:?}");
}

fn boxes() {
    for what in [
        Between::Bridge,
        Between::Accelerator,
        Between::Link { delay: Duration::ZERO },
        Between::Link { delay: Duration::from_us(500) },
        Between::Paired { is_sealed: false, delay: Duration::ZERO },
        Between::Paired { is_sealed: true, delay: Duration::ZERO },
        Between::Paired { is_sealed: true, delay: Duration::from_us(500) },
    ] {
        for payload_bytes in [512, 4096] {
            let ((near, a), (b, far)) = (ring("requesters"), ring("responders"));
            let load =
                Load::new(LoadConfig { flows: 64, ..LoadConfig::new(payload_bytes) }).unwrap();
            let mut row = Row::new(load, near, far, stages(what, a, b));
            row.pair().unwrap_or_else(|e| panic!("{what:?}: {e}"));
            assert_steady(&format!("{what:?}, {payload_bytes} B"), || stretch(&mut row));
        }
    }
}

/// Two ends of queue pairs connected by `ports`, in this thread.
fn ends<P: Port>(operation: Operation, qps: u32, [near, far]: [P; 2]) {
    let (mtu, message_bytes, depth) = (Mtu::B4096, 65_536, 16);
    let config =
        TransferConfig { operation, message_bytes, mtu, qps, depth, is_instrumented: false };
    let kind = near.capabilities().kind;
    let mut near = End::new(Role::Requester, config, near).unwrap();
    let mut far = End::new(Role::Responder, config, far).unwrap();
    near.connect(&far.introduction()).unwrap();
    far.connect(&near.introduction()).unwrap();
    while [near.service().unwrap(), far.service().unwrap()].contains(&LinkState::Down) {}
    assert_steady(&format!("{operation:?} by {qps} queue pairs over {kind}"), || {
        let (before, until) = (ALLOCATOR.calls(), near.step_ticks().packets + STRETCH);
        while near.step_ticks().packets < until {
            near.step().unwrap();
            far.step().unwrap();
        }
        ALLOCATOR.calls() - before
    });
}

fn memif() -> [MemifPort; 2] {
    let runtime = RuntimeDir::new();
    let socket = runtime.path().join("ends.sock");
    let config = MemifConfig { frame_bytes_max: 4608, ..MemifConfig::new("end") };
    let far = MemifPort::master(&socket, 0, config.clone()).unwrap();
    let mut ports = [MemifPort::slave(&socket, 0, config).unwrap(), far];
    // The directory is removed; the connection remains.
    while ports.each_mut().map(|port| port.service().unwrap()).contains(&LinkState::Down) {}
    ports
}

#[test]
fn no_packet_costs_an_allocation() {
    boxes();
    for operation in [Operation::Write, Operation::Send, Operation::Read] {
        for qps in [1, 64] {
            let (near, far) = ring("ends");
            ends(operation, qps, [near, far]);
            ends(operation, qps, memif());
        }
    }
}
