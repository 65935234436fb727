//! What a turn of an accelerator takes, on a machine with other work:
//! `turns PAYLOAD FLOWS KM TURNS`, with 512, 64, 0 and 10000 unless told.
//!
//! Every turn of 64 packets is timed by itself, so that those from which the processor was taken
//! away do not count: what is printed are ticks of the time-stamp counter per packet, in the tenth
//! of the turns that were quickest and in the median. Time is virtual, 300 ns a packet, so that as
//! much is in flight as on a machine of its own. To compare two builds, run them by turns and take
//! the least.

use longhaul_accel::{Accelerator, Config, FlowState};
use longhaul_datapath::{Load, LoadConfig, RingEnd, Ticks};
use longhaul_host::{TurnConfig, turn};
use longhaul_node::Chain;
use longhaul_units::{Duration, Instant};

/// As `longhaul accelerate` has it: a chain whose other places are empty.
type Alone = Chain<Accelerator, Accelerator>;

const PER_PACKET: Duration = Duration::from_ns(300);
/// Turns in a row when more came than one takes.
const STEPS_MAX: usize = 4;

struct Row {
    load: Load,
    near: RingEnd,
    far: RingEnd,
    node: Alone,
    ports: [RingEnd; 2],
    now: Instant,
    ticks: Ticks,
}

impl Row {
    fn new(payload_bytes: usize, flows: u32) -> Row {
        let defaults = Config::default();
        let config = Config { flows_max: defaults.flows_max.max(flows), seed: 1, ..defaults };
        let ring = |name| RingEnd::pair(name, 256, 4608, false).expect("a ring");
        let ((near, lan), (wan, far)) = (ring("near"), ring("far"));
        Row {
            load: Load::new(LoadConfig { flows, ..LoadConfig::new(payload_bytes) })
                .expect("flows or payload"),
            near,
            far,
            node: Chain::new(None, Some(Accelerator::new(config).expect("valid"))),
            ports: [lan, wan],
            now: Instant::from_ns(1000),
            ticks: Ticks::new(),
        }
    }

    /// A burst through the box and what comes of it; the ticks that the box took.
    fn round(&mut self) -> u64 {
        self.load.send(&mut self.near).expect("rings do not fail");
        let (config, now, before) = (TurnConfig::default(), self.now, self.ticks.now());
        for _ in 0..STEPS_MAX {
            let done = turn(&mut self.node, &mut self.ports, &|| now, &config, &mut |_, error| {
                panic!("{error}")
            });
            if done.received < config.receive_batch {
                break;
            }
        }
        let took = self.ticks.now() - before;
        self.now = (now + Duration::from_ns(100))
            .max(Instant::ZERO + PER_PACKET.times(self.load.counters().arrived));
        self.load.respond(&mut self.far, self.now).expect("rings do not fail");
        self.load.take_acks(&mut self.near).expect("rings do not fail");
        took
    }

    /// Until every flow is known.
    fn pair(&mut self) {
        let flows = self.load.config().flows as usize;
        let known = |node: &Alone| {
            node.right()
                .map_or(0, |a| a.flows().filter(|f| f.state == FlowState::Terminated).count())
        };
        for quota in 1..100 {
            self.load.set_quota(Some(quota));
            while !self.load.is_paired() {
                self.round();
            }
            if known(&self.node) == flows {
                return self.load.set_quota(None);
            }
        }
        panic!("{} of {flows} flows are known", known(&self.node));
    }
}

fn main() {
    let given: Vec<u64> = std::env::args().skip(1).map_while(|text| text.parse().ok()).collect();
    let number = |at: usize, otherwise| given.get(at).copied().unwrap_or(otherwise);
    let mut row = Row::new(number(0, 512) as usize, number(1, 64) as u32);
    row.pair();
    let round_trip = Duration::of_fibre_m(1000 * number(2, 0)).times(2);
    row.load.set_ack_delay(round_trip);
    let warm =
        row.load.counters().arrived + 200_000.max(4 * round_trip.as_ns() / PER_PACKET.as_ns());
    while row.load.counters().arrived < warm {
        row.round();
    }
    let before = row.load.counters();
    let mut took: Vec<u64> = (0..number(3, 10_000)).map(|_| row.round()).collect();
    let did = row.load.counters().since(&before);
    assert_eq!((did.duplicates, did.behind_gaps, did.corrupt, did.refusals), (0, 0, 0, 0));
    let each = did.arrived as f64 / took.len() as f64;
    took.sort_unstable();
    println!(
        "{:.1} {:.1}",
        took[took.len() / 10] as f64 / each,
        took[took.len() / 2] as f64 / each
    );
}
