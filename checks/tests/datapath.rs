//! What boxes allocate while traffic passes them over real rings: accelerators, fibres and paired boxes nothing, once they are warm.
//! One test at a time looks at the counts, so that there is only one here.

use longhaul_accel::{Accelerator, Config, FlowState};
use longhaul_checks::counting::Counting;
use longhaul_datapath::{Bridge, Load, LoadConfig, NodeStage, Row, Seen, Stage};
use longhaul_link::{Link, LinkConfig};
use longhaul_node::{Chain, Mirrored};
use longhaul_port::loopback::{self, LoopbackPort};
use longhaul_seal::{PeerConfig, PrivateKey, Seal, Sealed, Seed};
use longhaul_units::{BitRate, Duration};
use longhaul_wan::Transport;

#[global_allocator]
static ALLOCATOR: Counting = Counting::new();

/// Packets of a stretch, and stretches within which several in a row must be without an allocation: until then tables and pools
/// grow to what this load keeps in them.
const STRETCH: u64 = 10_000;
const STRETCHES_MAX: usize = 60;
const IN_A_ROW: usize = 4;

type Whole = Chain<Accelerator, Chain<Mirrored<Accelerator>, Sealed<Transport>>>;

fn ring(name: &str) -> (LoopbackPort, LoopbackPort) {
    loopback::pair(name, 256, 4608).unwrap()
}

fn whole(number: u8, is_sealed: bool, delay: Duration) -> Whole {
    let [near, far] = Config { seed: number.into(), ..Config::default() }.halves(delay.times(2));
    let seed = u64::from(number);
    let transport =
        Transport::new(longhaul_wan::Config { box_id: seed, seed, ..Default::default() }).unwrap();
    let key = |number: u8| PrivateKey::generate(&Seed::new([number; 32]));
    let seal = is_sealed.then(|| {
        let peer =
            PeerConfig { name: "far".into(), public_key: key(3 - number).public(), preshared_key: None };
        Seal::new(longhaul_seal::Config::new(key(number), vec![peer], Seed::new([10 + number; 32]))).unwrap()
    });
    let behind =
        Chain::new(Some(Mirrored(Accelerator::new(far).unwrap())), Some(Sealed::new(transport, seal)));
    Chain::new(Some(Accelerator::new(near).unwrap()), Some(behind))
}

fn terminated(accelerator: &Accelerator) -> Seen {
    let count = accelerator.flows().filter(|flow| flow.state == FlowState::Terminated).count();
    Seen { ready_flows: Some(count as u32), ..Seen::default() }
}

fn near_of(whole: &Whole) -> Seen {
    let mut seen = whole.left().map(terminated).unwrap_or_default();
    let transport = whole.right().and_then(Chain::right).map(Sealed::node);
    if !transport.is_some_and(|transport| transport.sessions().any(|session| session.is_open)) {
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

/// What is between the requesters' ring and the responders'.
fn stages(what: Between, a: LoopbackPort, b: LoopbackPort) -> Vec<Box<dyn Stage>> {
    match what {
        Between::Bridge => vec![Box::new(Bridge::new([a, b]))],
        Between::Accelerator => {
            let node = Accelerator::new(Config::default()).unwrap();
            vec![Box::new(NodeStage::new("accelerator", node, vec![a, b], terminated))]
        }
        Between::Link { delay } => {
            let rate = BitRate::from_gbps(100);
            let node = Link::new(LinkConfig { delay, rate, ..LinkConfig::default() }).unwrap();
            vec![Box::new(NodeStage::new("link", node, vec![a, b], nothing_to_say))]
        }
        Between::Paired { is_sealed, delay } => {
            let ((c, d), (e, f)) = (ring("near"), ring("far"));
            let link = Link::new(LinkConfig { delay, ..LinkConfig::default() }).unwrap();
            vec![
                Box::new(NodeStage::new("near", whole(1, is_sealed, delay), vec![a, c], near_of)),
                Box::new(NodeStage::new("path", link, vec![d, e], nothing_to_say)),
                Box::new(NodeStage::new("far", whole(2, is_sealed, delay), vec![b, f], nothing_to_say)),
            ]
        }
    }
}

/// Puts a stretch through: allocations meanwhile.
fn stretch(row: &mut Row<LoopbackPort>) -> u64 {
    let (before, until) = (ALLOCATOR.calls(), row.load().counters().arrived + STRETCH);
    while row.load().counters().arrived < until {
        row.round().unwrap();
    }
    ALLOCATOR.calls() - before
}

#[test]
fn no_packet_costs_an_allocation() {
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
            let load = Load::new(LoadConfig { flows: 64, ..LoadConfig::new(payload_bytes) }).unwrap();
            let mut row = Row::new(load, near, far, stages(what, a, b));
            row.pair().unwrap_or_else(|e| panic!("{what:?}: {e}"));
            let mut allocated = Vec::with_capacity(STRETCHES_MAX);
            let is_steady = |allocated: &[u64]| {
                allocated.len() >= IN_A_ROW && allocated.iter().rev().take(IN_A_ROW).all(|&calls| calls == 0)
            };
            while allocated.len() < STRETCHES_MAX && !is_steady(&allocated) {
                allocated.push(stretch(&mut row));
            }
            println!("{what:?}, {payload_bytes} B: allocations for {STRETCH} packets each: {allocated:?}");
            assert!(is_steady(&allocated), "{what:?}, {payload_bytes} B: {allocated:?}");
        }
    }
}
