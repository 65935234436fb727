//! Two nodes in series that act as one.

use crate::{Deadline, Frame, FrameBuf, Node, Side, Transmit};
use longhaul_units::Instant;

/// Frames that one node may pass to its neighbour in one turn.
const BATCH: usize = 64;
/// Rounds in which the nodes take turns within one call.
const ROUNDS_MAX: usize = 64;

/// Two nodes in series: side 1 of the left one is joined to side 0 of the right one.
///
/// The chain is itself a [`Node`]: its side 0 is the left node's, its sides from 1 on are the right
/// node's. Chains nest: `Chain<A, Chain<B, C>>` is three nodes in series, statically dispatched,
/// with each element accessible by its type. A frame passes the joint at the same instant, without
/// a copy or an allocation.
///
/// One of the two elements may be absent: its place is then a cable without delay.
///
/// An [`Observer`] sees the frames at the joint.
pub struct Chain<L, R, O = ()> {
    left: Option<L>,
    right: Option<R>,
    observer: O,
    /// Time at which the rounds ran out with work left over.
    unfinished_at: Option<Instant>,
}

/// Observes the frames that pass a joint between two nodes, to record or check them.
///
/// `()` observes nothing, a closure observes, and `Option` decides at run time.
pub trait Observer {
    /// Called when `frame` passes at `now` towards the chain's side `toward` (0 or 1).
    fn observe(&mut self, now: Instant, toward: Side, frame: &Frame<'_>);

    /// Same as [`Observer::observe`], for a held frame; an observer that ignores it need not parse
    /// it.
    #[inline]
    fn observe_held(&mut self, now: Instant, toward: Side, held: &FrameBuf) {
        self.observe(now, toward, &held.as_frame());
    }
}

impl Observer for () {
    #[inline]
    fn observe(&mut self, _now: Instant, _toward: Side, _frame: &Frame<'_>) {}

    #[inline]
    fn observe_held(&mut self, _now: Instant, _toward: Side, _held: &FrameBuf) {}
}

impl<F: FnMut(Instant, Side, &Frame<'_>)> Observer for F {
    #[inline]
    fn observe(&mut self, now: Instant, toward: Side, frame: &Frame<'_>) {
        self(now, toward, frame);
    }
}

impl<O: Observer> Observer for Option<O> {
    #[inline]
    fn observe(&mut self, now: Instant, toward: Side, frame: &Frame<'_>) {
        if let Some(observer) = self {
            observer.observe(now, toward, frame);
        }
    }

    #[inline]
    fn observe_held(&mut self, now: Instant, toward: Side, held: &FrameBuf) {
        if let Some(observer) = self {
            observer.observe_held(now, toward, held);
        }
    }
}

impl<L: Node, R: Node> Chain<L, R> {
    /// Joins `left` and `right`. `None` stands for a cable without delay.
    ///
    /// # Panics
    /// When both are absent.
    pub fn new(left: Option<L>, right: Option<R>) -> Self {
        Chain::observed(left, right, ())
    }
}

impl<L: Node, R: Node, O: Observer> Chain<L, R, O> {
    /// Same as [`Chain::new`], with every frame at the joint shown to `observer`.
    ///
    /// # Panics
    /// When both are absent.
    pub fn observed(left: Option<L>, right: Option<R>, observer: O) -> Self {
        assert!(left.is_some() || right.is_some(), "a chain of nothing");
        Chain { left, right, observer, unfinished_at: None }
    }

    /// The left node, unless absent.
    pub fn left(&self) -> Option<&L> {
        self.left.as_ref()
    }

    /// The left node, unless absent.
    pub fn left_mut(&mut self) -> Option<&mut L> {
        self.left.as_mut()
    }

    /// The right node, unless absent.
    pub fn right(&self) -> Option<&R> {
        self.right.as_ref()
    }

    /// The right node, unless absent.
    pub fn right_mut(&mut self) -> Option<&mut R> {
        self.right.as_mut()
    }

    /// The observer of the joint.
    pub fn observer_mut(&mut self) -> &mut O {
        &mut self.observer
    }

    /// Lets both nodes send in turns until neither has a frame for the other. Returns `false` if
    /// the rounds ran out first.
    fn pass_to_and_fro(&mut self, now: Instant, out: &mut dyn Transmit) -> bool {
        let (left, right) = match (&mut self.left, &mut self.right) {
            (Some(left), Some(right)) => (left, right),
            (Some(only), None) => {
                only.poll_transmit(
                    now,
                    &mut Cable { now, end: 1, observer: &mut self.observer, out },
                );
                return true;
            }
            (None, Some(only)) => {
                only.poll_transmit(
                    now,
                    &mut Cable { now, end: 0, observer: &mut self.observer, out },
                );
                return true;
            }
            (None, None) => unreachable!("refused when made"),
        };
        for _ in 0..ROUNDS_MAX {
            let rightward = pass(now, left, right, 1, &mut self.observer, out);
            let leftward = pass(now, right, left, 0, &mut self.observer, out);
            // A node has more to send: the left one after a full batch, either one if its neighbour
            // has room again.
            let can_go_on = rightward.passed == BATCH
                || rightward.is_refused && right.intake(0) > 0
                || leftward.is_refused && left.intake(1) > 0;
            if leftward.passed == 0 && !can_go_on {
                return true;
            }
        }
        false
    }
}

/// Result of a node's turn.
struct Passed {
    /// Frames passed to the neighbour, at most [`BATCH`].
    passed: usize,
    /// The neighbour's intake was exhausted.
    is_refused: bool,
}

/// Lets `from` send: to `to` through the joint, which is at its side `toward`, and to the outside.
fn pass(
    now: Instant,
    from: &mut impl Node,
    to: &mut impl Node,
    toward: Side,
    observer: &mut impl Observer,
    out: &mut dyn Transmit,
) -> Passed {
    let mut joint = Joint { now, to, toward, observer, out, room: BATCH, is_refused: false };
    from.poll_transmit(now, &mut joint);
    Passed { passed: BATCH - joint.room, is_refused: joint.is_refused }
}

/// Transmits a node's frames, over the joint to its neighbour or out of the chain.
struct Joint<'a, N, O> {
    now: Instant,
    to: &'a mut N,
    toward: Side,
    observer: &'a mut O,
    out: &'a mut dyn Transmit,
    room: usize,
    is_refused: bool,
}

impl<N: Node, O: Observer> Transmit for Joint<'_, N, O> {
    #[inline]
    fn room(&mut self, side: Side) -> usize {
        if side != self.toward {
            return self.out.room(side);
        }
        let intake = self.to.intake(1 - self.toward);
        self.is_refused |= intake == 0;
        self.room.min(intake)
    }

    #[inline]
    fn other_room(&mut self, side: Side) -> usize {
        if side != self.toward {
            return self.out.other_room(side);
        }
        self.room.min(self.to.other_intake(1 - self.toward))
    }

    #[inline]
    fn transmit(&mut self, side: Side, frame: &Frame<'_>) {
        if side != self.toward {
            return self.out.transmit(side, frame);
        }
        // A frame sent without asking for room passes too: the joint has no drop counter.
        self.room = self.room.saturating_sub(1);
        self.observer.observe(self.now, self.toward, frame);
        self.to.handle_frame(self.now, 1 - self.toward, frame);
    }

    #[inline]
    fn transmit_held(&mut self, side: Side, held: &FrameBuf) {
        if side != self.toward {
            return self.out.transmit_held(side, held);
        }
        self.room = self.room.saturating_sub(1);
        self.observer.observe_held(self.now, self.toward, held);
        self.to.handle_frame(self.now, 1 - self.toward, &held.as_frame());
    }
}

/// The outside, with the place of the absent node at `end` observed like a joint.
struct Cable<'a, O> {
    now: Instant,
    end: Side,
    observer: &'a mut O,
    out: &'a mut dyn Transmit,
}

impl<O: Observer> Transmit for Cable<'_, O> {
    #[inline]
    fn room(&mut self, side: Side) -> usize {
        self.out.room(side)
    }

    #[inline]
    fn other_room(&mut self, side: Side) -> usize {
        self.out.other_room(side)
    }

    #[inline]
    fn transmit(&mut self, side: Side, frame: &Frame<'_>) {
        if side == self.end {
            self.observer.observe(self.now, side, frame);
        }
        self.out.transmit(side, frame);
    }

    #[inline]
    fn transmit_held(&mut self, side: Side, held: &FrameBuf) {
        if side == self.end {
            self.observer.observe_held(self.now, side, held);
        }
        self.out.transmit_held(side, held);
    }
}

impl<L: Node, R: Node, O: Observer> Node for Chain<L, R, O> {
    #[inline]
    fn handle_frame(&mut self, now: Instant, side: Side, frame: &Frame<'_>) {
        match (&mut self.left, &mut self.right, side) {
            (Some(left), _, 0) => left.handle_frame(now, 0, frame),
            (_, Some(right), 1..) => right.handle_frame(now, side, frame),
            (None, Some(right), 0) => {
                self.observer.observe(now, 1, frame);
                right.handle_frame(now, 0, frame);
            }
            (Some(left), None, 1..) => {
                self.observer.observe(now, 0, frame);
                left.handle_frame(now, side, frame);
            }
            (None, None, _) => {}
        }
    }

    fn handle_timeout(&mut self, now: Instant) {
        if let Some(left) = &mut self.left {
            left.handle_timeout(now);
        }
        if let Some(right) = &mut self.right {
            right.handle_timeout(now);
        }
    }

    #[inline]
    fn poll_transmit(&mut self, now: Instant, out: &mut dyn Transmit) {
        let is_finished = self.pass_to_and_fro(now, out);
        self.unfinished_at = if is_finished { None } else { Some(now) };
    }

    #[inline]
    fn poll_timeout(&self) -> Option<Deadline> {
        let left = self.left.as_ref().and_then(Node::poll_timeout);
        let right = self.right.as_ref().and_then(Node::poll_timeout);
        let unfinished =
            self.unfinished_at.map(|at| Deadline { at, reason: "more to pass along the chain" });
        Deadline::earliest(unfinished, Deadline::earliest(left, right))
    }

    fn intake(&self, side: Side) -> usize {
        match (&self.left, &self.right) {
            (Some(left), right) if side == 0 || right.is_none() => left.intake(side),
            (_, Some(right)) => right.intake(side),
            (_, None) => usize::MAX,
        }
    }

    fn other_intake(&self, side: Side) -> usize {
        match (&self.left, &self.right) {
            (Some(left), right) if side == 0 || right.is_none() => left.other_intake(side),
            (_, Some(right)) => right.other_intake(side),
            (_, None) => usize::MAX,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{FrameBuf, FramePool};
    use std::collections::VecDeque;

    const NOW: Instant = Instant::from_ns(7);

    /// Forwards frames to the other side, or returns them if told to.
    #[derive(Default)]
    struct Relay {
        name: u8,
        echoes: bool,
        waiting: [VecDeque<FrameBuf>; 2],
        pool: FramePool,
        heard: u64,
        /// Most frames that may wait for one side.
        waiting_max: Option<usize>,
    }

    impl Relay {
        fn named(name: u8) -> Self {
            Relay { name, ..Relay::default() }
        }
    }

    impl Node for Relay {
        fn handle_frame(&mut self, _now: Instant, side: Side, frame: &Frame<'_>) {
            self.heard += 1;
            let to = if self.echoes { side } else { 1 - side };
            self.waiting[to].push_back(self.pool.hold(frame));
        }
        fn handle_timeout(&mut self, _now: Instant) {}
        fn poll_transmit(&mut self, _now: Instant, out: &mut dyn Transmit) {
            for side in 0..2 {
                while out.room(side) > 0
                    && let Some(frame) = self.waiting[side].pop_front()
                {
                    out.transmit_held(side, &frame);
                }
            }
        }
        fn poll_timeout(&self) -> Option<Deadline> {
            Some(Deadline { at: Instant::from_ns(100 - u64::from(self.name)), reason: "test" })
        }
        fn intake(&self, side: Side) -> usize {
            self.waiting_max
                .map_or(usize::MAX, |max| max.saturating_sub(self.waiting[1 - side].len()))
        }
    }

    fn row<R: Node>(name: u8, right: R) -> Chain<Relay, R> {
        Chain::new(Some(Relay::named(name)), Some(right))
    }

    #[derive(Default)]
    struct Sink {
        room: usize,
        frames: Vec<(Side, Vec<u8>)>,
    }

    impl Transmit for Sink {
        fn room(&mut self, _side: Side) -> usize {
            self.room
        }
        fn transmit(&mut self, side: Side, frame: &Frame<'_>) {
            self.room -= 1;
            let mut bytes = vec![0; frame.len()];
            frame.write_to(&mut bytes);
            self.frames.push((side, bytes));
        }
    }

    fn sink() -> Sink {
        Sink { room: 10_000, frames: Vec::new() }
    }

    #[test]
    fn three_in_a_row_pass_both_ways_at_one_instant_and_in_order() {
        let mut chain = row(1, row(2, Relay::named(3)));
        for number in 0..200_u8 {
            chain.handle_frame(NOW, 0, &Frame::opaque(&[number; 300]));
            chain.handle_frame(NOW, 1, &Frame::opaque(&[number; 20]));
        }
        let mut out = sink();
        chain.poll_transmit(NOW, &mut out);
        for (side, len) in [(1, 300), (0, 20)] {
            let numbers: Vec<u8> =
                out.frames.iter().filter(|f| f.0 == side).map(|f| f.1[0]).collect();
            assert_eq!(numbers, (0..200).collect::<Vec<u8>>());
            assert!(out.frames.iter().filter(|f| f.0 == side).all(|f| f.1.len() == len));
        }
        assert_eq!(chain.right().unwrap().left().unwrap().heard, 400);
    }

    /// A node with one side per path: forwards what arrives on side `n` on the next side.
    struct Paths(VecDeque<(Side, FrameBuf)>);

    impl Node for Paths {
        fn handle_frame(&mut self, _now: Instant, side: Side, frame: &Frame<'_>) {
            self.0.push_back((side + 1, FramePool::default().hold(frame)));
        }
        fn handle_timeout(&mut self, _now: Instant) {}
        fn poll_transmit(&mut self, _now: Instant, out: &mut dyn Transmit) {
            while let Some((side, frame)) = self.0.pop_front() {
                out.transmit(side, &frame.as_frame());
            }
        }
        fn poll_timeout(&self) -> Option<Deadline> {
            None
        }
    }

    #[test]
    fn the_right_node_has_all_sides_from_1_on() {
        let mut chain = row(1, row(2, Paths(VecDeque::new())));
        for side in 0..4 {
            chain.handle_frame(NOW, side, &Frame::opaque(&[0; 20]));
        }
        let mut out = sink();
        chain.poll_transmit(NOW, &mut out);
        let sides: Vec<Side> = out.frames.iter().map(|frame| frame.0).collect();
        assert_eq!(sides, [2, 3, 4, 1]);
    }

    /// Holds back RoCEv2 frames only.
    struct Busy;

    impl Node for Busy {
        fn handle_frame(&mut self, _now: Instant, _side: Side, _frame: &Frame<'_>) {}
        fn handle_timeout(&mut self, _now: Instant) {}
        fn poll_transmit(&mut self, _now: Instant, _out: &mut dyn Transmit) {}
        fn poll_timeout(&self) -> Option<Deadline> {
            None
        }
        fn intake(&self, _side: Side) -> usize {
            0
        }
        fn other_intake(&self, _side: Side) -> usize {
            usize::MAX
        }
    }

    /// Notes the room that it finds at its side 1.
    #[derive(Default)]
    struct Asks(Option<[usize; 2]>);

    impl Node for Asks {
        fn handle_frame(&mut self, _now: Instant, _side: Side, _frame: &Frame<'_>) {}
        fn handle_timeout(&mut self, _now: Instant) {}
        fn poll_transmit(&mut self, _now: Instant, out: &mut dyn Transmit) {
            self.0 = Some([out.room(1), out.other_room(1)]);
        }
        fn poll_timeout(&self) -> Option<Deadline> {
            None
        }
    }

    #[test]
    fn a_node_that_holds_back_roce_takes_other_frames_through_any_joint() {
        let mirrored = crate::Mirrored(Busy);
        let mut chain =
            Chain::new(Some(Asks::default()), Some(Chain::new(Some(mirrored), None::<Busy>)));
        chain.poll_transmit(NOW, &mut sink());
        assert_eq!(chain.left().unwrap().0, Some([0, BATCH]));
        assert_eq!((Busy.intake(0), chain.right().unwrap().other_intake(0)), (0, usize::MAX));
    }

    #[test]
    fn the_earliest_deadline_of_all_counts() {
        let chain = row(1, row(9, Relay::named(3)));
        assert_eq!(chain.poll_timeout().unwrap().at, Instant::from_ns(91));
    }

    #[test]
    fn the_joint_is_observed_with_its_direction() {
        let mut seen = Vec::new();
        {
            let observer = |now, toward, frame: &Frame<'_>| seen.push((now, toward, frame.len()));
            let mut chain = Chain::observed(Some(Relay::named(1)), Some(Relay::named(2)), observer);
            chain.handle_frame(NOW, 0, &Frame::opaque(&[0; 20]));
            chain.handle_frame(NOW, 1, &Frame::opaque(&[0; 30]));
            chain.poll_transmit(NOW, &mut sink());
        }
        assert_eq!(seen, [(NOW, 1, 20), (NOW, 0, 30)]);
    }

    /// Counts all frames, and held ones.
    #[derive(Default)]
    struct Tally([usize; 2]);

    impl Observer for Tally {
        fn observe(&mut self, _now: Instant, _toward: Side, _frame: &Frame<'_>) {
            self.0[0] += 1;
        }
        fn observe_held(&mut self, now: Instant, toward: Side, held: &FrameBuf) {
            self.0[1] += 1;
            self.observe(now, toward, &held.as_frame());
        }
    }

    #[test]
    fn a_held_frame_is_observed_as_one_at_a_joint_and_at_a_cable() {
        for right in [Some(Relay::named(2)), None] {
            let mut chain = Chain::observed(Some(Relay::named(1)), right, Tally::default());
            chain.handle_frame(NOW, 0, &Frame::opaque(&[0; 20]));
            chain.poll_transmit(NOW, &mut sink());
            assert_eq!(chain.observer_mut().0, [1, 1]);
        }
    }

    #[test]
    fn an_absent_element_is_a_cable_that_is_still_observed() {
        for is_left_absent in [true, false] {
            let mut seen = Vec::new();
            let mut out = sink();
            {
                let observer = |_, toward, frame: &Frame<'_>| seen.push((toward, frame.len()));
                let (left, right) = if is_left_absent {
                    (None, Some(Relay::named(1)))
                } else {
                    (Some(Relay::named(1)), None)
                };
                let mut chain = Chain::observed(left, right, observer);
                chain.handle_frame(NOW, 0, &Frame::opaque(&[0; 20]));
                chain.handle_frame(NOW, 1, &Frame::opaque(&[0; 30]));
                chain.poll_transmit(NOW, &mut out);
            }
            seen.sort_unstable();
            assert_eq!(seen, [(0, 30), (1, 20)], "left absent: {is_left_absent}");
            out.frames.sort_unstable();
            assert_eq!(out.frames, [(0, vec![0; 30]), (1, vec![0; 20])]);
        }
    }

    #[test]
    fn frames_stay_inside_while_the_outside_has_no_room() {
        let mut chain = row(1, Relay::named(2));
        for _ in 0..5 {
            chain.handle_frame(NOW, 0, &Frame::opaque(&[0; 20]));
        }
        let mut out = Sink { room: 2, frames: Vec::new() };
        chain.poll_transmit(NOW, &mut out);
        assert_eq!(out.frames.len(), 2);
        out.room = 10;
        chain.poll_transmit(NOW, &mut out);
        assert_eq!(out.frames.len(), 5);
    }

    #[test]
    fn a_node_that_is_full_makes_its_neighbour_wait() {
        let full = Relay { waiting_max: Some(3), ..Relay::named(2) };
        let mut chain = row(1, full);
        for _ in 0..20 {
            chain.handle_frame(NOW, 0, &Frame::opaque(&[0; 20]));
        }
        let mut out = Sink { room: 4, frames: Vec::new() };
        chain.poll_transmit(NOW, &mut out);
        assert_eq!(out.frames.len(), 4);
        assert_eq!(chain.right().unwrap().waiting[1].len(), 3, "no more than it takes");
        assert_eq!(chain.left().unwrap().waiting[1].len(), 13, "the rest waits before it");
        out.room = 100;
        chain.poll_transmit(NOW, &mut out);
        assert_eq!(out.frames.len(), 20, "what was refused comes as soon as there is room");
    }

    #[test]
    fn nodes_that_never_stop_talking_yield_and_ask_to_be_called_again() {
        let echo = |name| Relay { name, echoes: true, ..Relay::default() };
        let mut chain = Chain::new(Some(echo(1)), Some(echo(2)));
        let frame = chain.left_mut().unwrap().pool.hold(&Frame::opaque(&[0; 20]));
        chain.left_mut().unwrap().waiting[1].push_back(frame);
        chain.poll_transmit(NOW, &mut sink());
        assert_eq!(chain.poll_timeout().unwrap().at, NOW);
        let heard = chain.left().unwrap().heard;
        chain.poll_transmit(NOW, &mut sink());
        assert!(chain.left().unwrap().heard > heard);
    }

    #[test]
    #[should_panic(expected = "a chain of nothing")]
    fn refuses_to_be_nothing() {
        let _ = Chain::<Relay, Relay>::new(None, None);
    }
}
