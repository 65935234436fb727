//! Pause frames of priority-based flow control: which QPs wait, and for how long.

use crate::pair::*;
use longhaul_node::{Frame, Node, Side, Transmit};
use longhaul_rnic::*;
use longhaul_units::{BitRate, Duration, Instant};
use longhaul_wire::{MacAddr, Pause};

struct Count(usize);

impl Transmit for Count {
    fn room(&mut self, _side: Side) -> usize {
        1000
    }
    fn transmit(&mut self, _side: Side, _frame: &Frame<'_>) {
        self.0 += 1;
    }
}

fn rate() -> BitRate {
    BitRate::from_gbps(100).unwrap()
}

/// A connected pair whose node 0 obeys pauses and has three packets of priority 0 to send.
fn ready(link_rate: Option<BitRate>) -> Pair {
    let mut pair = Pair::with(1, 1 << 16, |config| config.link_rate = link_rate);
    let ends = pair.connect(&Link::default());
    pair.fill(0, 0, 3000, 1);
    pair.post(0, ends.qp[0], &wr(1, write_to(&ends, 1, 0), &[sge(&ends, 0, 0, 3000)]));
    pair
}

fn hear(pair: &mut Pair, now: Instant, pause: &Pause) {
    let bytes = pause.write(MacAddr([2, 0, 0, 0, 0, 9]));
    pair.nodes[0].handle_frame(now, 0, &Frame::opaque(&bytes));
}

/// Frames that node 0 sends at `now`.
fn sent(pair: &mut Pair, now: Instant) -> usize {
    let mut count = Count(0);
    pair.nodes[0].handle_timeout(now);
    pair.nodes[0].poll_transmit(now, &mut count);
    count.0
}

#[test]
fn a_paused_priority_sends_nothing_until_the_time_is_over() {
    let mut pair = ready(Some(rate()));
    let now = pair.now;
    hear(&mut pair, now, &Pause::of(0, 100));
    assert_eq!(sent(&mut pair, now), 0);
    let over = now + Pause::time(100, rate());
    let deadline = pair.nodes[0].poll_timeout().unwrap();
    assert_eq!((deadline.at, deadline.reason), (over, "paused by the link's other end"));
    assert_eq!(sent(&mut pair, over), 3);
    let counters = pair.nodes[0].counters();
    assert_eq!(counters.get(Counter::RxPause), 1);
    assert_eq!(counters.get(Counter::RxPausedNs), Pause::time(100, rate()).as_ns());
}

#[test]
fn it_goes_on_when_told_so() {
    let mut pair = ready(Some(rate()));
    let now = pair.now;
    hear(&mut pair, now, &Pause::of(0, u16::MAX));
    let later = now + Duration::from_us(3);
    assert_eq!(sent(&mut pair, later), 0);
    hear(&mut pair, later, &Pause::of(0, 0));
    assert_eq!(sent(&mut pair, later), 3);
    assert_eq!(pair.nodes[0].counters().get(Counter::RxPausedNs), 3000);
}

#[test]
fn another_priority_holds_nobody() {
    let mut pair = ready(Some(rate()));
    let now = pair.now;
    hear(&mut pair, now, &Pause::of(3, u16::MAX));
    assert_eq!(sent(&mut pair, now), 3);
}

#[test]
fn a_port_without_a_link_rate_obeys_none() {
    let mut pair = ready(None);
    let now = pair.now;
    hear(&mut pair, now, &Pause::of(0, u16::MAX));
    assert_eq!(sent(&mut pair, now), 3);
    assert_eq!(pair.nodes[0].counters().get(DropReason::MacControl), 1);
}

#[test]
fn a_qp_that_is_destroyed_while_it_waits_is_forgotten() {
    let mut pair = ready(Some(rate()));
    let now = pair.now;
    hear(&mut pair, now, &Pause::of(0, 100));
    assert_eq!(sent(&mut pair, now), 0);
    let qpn = pair.nodes[0].qp_snapshots().next().unwrap().qpn;
    pair.nodes[0].destroy_qp(qpn).unwrap();
    assert_eq!(sent(&mut pair, now + Pause::time(100, rate())), 0);
}
