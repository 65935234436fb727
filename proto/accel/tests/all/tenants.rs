//! Two tenants behind one box: one whose receivers are not ready, and a neighbour.
//!
//! The connections of the first tenant last as long as its requesters' RNR retry counters allow,
//! and the neighbour keeps its goodput.

use crate::sites::{Boxes, MESSAGE_MAX, Pair, Setup, Sites, small_stores};
use longhaul_accel::Mode;
use longhaul_rnic::Status;
use longhaul_units::{BitRate, Duration, Instant};

const SLOW: usize = 0;
const NEIGHBOUR: usize = 1;
/// Length and number in flight of the neighbour's WRITEs.
const WRITE: usize = 64 << 10;
const DEPTH: u32 = 64;
/// Queue pairs of the slow tenant.
const SLOW_PAIRS: usize = 20;
/// Its work requests per queue pair: short ones that are received, and long ones that are not.
const SHORT: u64 = 3;
const LONG: u64 = 6;
/// RNR retry count that means infinite.
const INFINITE: u8 = 7;

fn setup(boxes: Boxes, mode: Mode) -> Setup {
    Setup {
        boxes,
        config: small_stores(mode),
        hosts: 2,
        rate: BitRate::from_bps(500_000_000).expect("not zero"),
        delay: Duration::from_ms(5),
        loss: 0.0,
        seed: 1,
    }
}

fn at(ms: u64) -> Instant {
    Instant::ZERO + Duration::from_ms(ms)
}

struct Run {
    sites: Sites,
    slow: Vec<Pair>,
    neighbour: Pair,
    posted: u64,
    completed: u64,
}

impl Run {
    fn new(setup: &Setup, slow_pairs: usize, rnr_retry: u8) -> Run {
        let mut sites = Sites::new(setup);
        let neighbour = sites.connect(NEIGHBOUR, DEPTH, INFINITE);
        let slow: Vec<Pair> = (0..slow_pairs).map(|_| sites.connect(SLOW, 16, rnr_retry)).collect();
        for &pair in &slow {
            (0..SHORT).for_each(|_| sites.post_receive(pair, MESSAGE_MAX));
            (0..SHORT).for_each(|id| sites.post(pair, true, 1000, id));
            (SHORT..SHORT + LONG).for_each(|id| sites.post(pair, true, MESSAGE_MAX, id));
        }
        Run { sites, slow, neighbour, posted: 0, completed: 0 }
    }

    /// Runs until `end`, with the neighbour's queue always full.
    fn run_until(&mut self, end: Instant) {
        loop {
            while self.posted < self.completed + u64::from(DEPTH) {
                self.sites.post(self.neighbour, false, WRITE, self.posted);
                self.posted += 1;
            }
            if !self.sites.step(end) {
                return;
            }
            for completion in self.sites.completions(self.neighbour, 0) {
                assert_eq!(
                    completion.status,
                    Status::Success,
                    "the neighbour's {}",
                    completion.wr_id
                );
                self.completed += 1;
            }
        }
    }

    /// The neighbour's WRITEs that complete between `from` and `to`.
    fn writes_between(&mut self, from: Instant, to: Instant) -> u64 {
        self.run_until(from);
        let before = self.completed;
        self.run_until(to);
        self.completed - before
    }

    /// Completion statuses of the slow tenant since the last call.
    fn slow_ends(&mut self) -> Vec<Status> {
        let pairs = self.slow.clone();
        pairs.iter().flat_map(|pair| self.sites.completions(*pair, 0)).map(|c| c.status).collect()
    }
}

/// Compares half a second of the neighbour beside slow connections with half a second alone. Then
/// the receivers become ready.
fn neighbour_is_served_and_nobody_gives_up(boxes: Boxes, mode: Mode) {
    let setup = setup(boxes, mode);
    let alone = Run::new(&setup, 0, INFINITE).writes_between(at(200), at(700));
    let mut run = Run::new(&setup, SLOW_PAIRS, INFINITE);
    let beside = run.writes_between(at(1000), at(1500));
    assert!(beside * 100 >= alone * 95, "{boxes:?} {mode}: {beside} WRITEs instead of {alone}");
    let ends = run.slow_ends();
    assert!(ends.iter().all(|status| *status == Status::Success), "{boxes:?} {mode}: {ends:?}");
    for accelerator in run.sites.boxes().into_iter().flatten() {
        let tenants: Vec<_> = accelerator.tenants().collect();
        assert_eq!(tenants.len(), 2, "{boxes:?} {mode}: {tenants:?}");
        for tenant in &tenants {
            // The slow tenant's store does not drain: it keeps the memory that it took while it was
            // alone.
            let most = accelerator.config().total_bytes_max / 32 * 31;
            assert!(tenant.stored_bytes <= most, "{boxes:?} {mode}: {tenant:?}");
        }
        assert_eq!(accelerator.counters().stored_lost, 0);
    }
    let mut done = ends.len();
    for pair in run.slow.clone() {
        (0..LONG).for_each(|_| run.sites.post_receive(pair, MESSAGE_MAX));
    }
    let all = SLOW_PAIRS * (SHORT + LONG) as usize;
    for ms in (1600..12_000).step_by(100) {
        run.run_until(at(ms));
        let ends = run.slow_ends();
        assert!(ends.iter().all(|status| *status == Status::Success), "{boxes:?} {mode}: {ends:?}");
        done += ends.len();
        if done == all {
            return;
        }
    }
    panic!("{boxes:?} {mode}: {done} of {all} work requests are done");
}

#[test]
fn one_box_serves_the_neighbour_of_a_slow_tenant() {
    neighbour_is_served_and_nobody_gives_up(Boxes::Near, Mode::Early);
}

#[test]
fn two_boxes_serve_the_neighbour_of_a_slow_tenant() {
    neighbour_is_served_and_nobody_gives_up(Boxes::Both, Mode::Early);
}

#[test]
fn two_boxes_in_mode_tail_serve_the_neighbour_of_a_slow_tenant() {
    neighbour_is_served_and_nobody_gives_up(Boxes::Both, Mode::Tail);
}

#[test]
fn boxes_with_the_transport_serve_the_neighbour_of_a_slow_tenant() {
    neighbour_is_served_and_nobody_gives_up(Boxes::Whole, Mode::Early);
}

#[test]
fn boxes_with_the_transport_in_mode_tail_serve_the_neighbour_of_a_slow_tenant() {
    neighbour_is_served_and_nobody_gives_up(Boxes::Whole, Mode::Tail);
}

/// In mode far the near box passes requests, so that the slow tenant's compete with the neighbour's
/// on the path. Without boxes the neighbour's connection fails within a second.
#[test]
fn two_boxes_in_mode_far_leave_the_neighbour_a_part_and_nobody_gives_up() {
    let setup = setup(Boxes::Both, Mode::Far);
    let alone = Run::new(&setup, 0, INFINITE).writes_between(at(1000), at(1500));
    let mut run = Run::new(&setup, SLOW_PAIRS, INFINITE);
    let beside = run.writes_between(at(1000), at(1500));
    assert!(beside * 4 >= alone, "{beside} WRITEs instead of {alone}");
    let ends = run.slow_ends();
    assert!(ends.iter().all(|status| *status == Status::Success), "{ends:?}");
}

#[test]
fn a_requester_that_counts_its_rnr_retries_ends_by_them() {
    for boxes in [Boxes::Near, Boxes::Both, Boxes::Whole] {
        for mode in [Mode::Early, Mode::Tail] {
            let mut run = Run::new(&setup(boxes, mode), 2, 2);
            run.run_until(at(1500));
            let ends = run.slow_ends();
            let failed: Vec<&Status> =
                ends.iter().filter(|status| **status != Status::Success).collect();
            assert_eq!(
                failed.first(),
                Some(&&Status::RnrRetryExceeded),
                "{boxes:?} {mode}: {ends:?}"
            );
        }
    }
}
