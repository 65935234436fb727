//! Frames that are not RoCEv2 pass a box unchanged, completely and each flow in order.

use super::frame::Other;
use super::{Findings, FramePosition, Passage, Rule, Segment};
use std::collections::{HashMap, VecDeque};

/// Frames that entered this long before the end of a box's captures must have left it.
const UNDER_WAY_NS: u64 = 1_000_000_000;
/// Age at which a frame that has not left is lost.
const EXPIRY_NS: u64 = 10_000_000_000;

/// A box between two captures. The capture that has a frame first determines its direction.
pub(super) struct Box {
    pub(super) ends: [Segment; 2],
    /// Frames that entered at either end and have not left, by flow.
    inside: [HashMap<u32, VecDeque<Entered>>; 2],
    /// Time of the next search for expired frames of all flows.
    sweep_at_ns: u64,
    /// Frames overtaken by later ones, by their `marked`.
    overtaken: HashMap<u64, Vec<Entered>>,
    carried: [u64; 2],
}

struct Entered {
    frame: Other,
    place: FramePosition,
}

impl Entered {
    /// `true` if `left` is this frame, possibly marked by the box.
    fn leaves_as(&self, left: Other) -> bool {
        [self.frame.whole, self.frame.marked].contains(&left.whole)
    }
}

fn never_left() -> String {
    "it never leaves the box as it came in".to_owned()
}

/// Removes the frames that have expired at `now_ns`.
fn expire(flow: &mut VecDeque<Entered>, now_ns: u64, findings: &mut Findings) {
    while let Some(&Entered { place, .. }) =
        flow.front().filter(|entered| entered.place.time_ns + EXPIRY_NS < now_ns)
    {
        findings.add(place, Rule::OtherLost, never_left);
        flow.pop_front();
    }
}

impl Box {
    pub(super) fn new(ends: [Segment; 2]) -> Self {
        Box {
            ends,
            inside: [HashMap::new(), HashMap::new()],
            sweep_at_ns: 0,
            overtaken: HashMap::new(),
            carried: [0; 2],
        }
    }

    pub(super) fn see(&mut self, place: FramePosition, frame: Other, findings: &mut Findings) {
        let Some(end) = self.ends.iter().position(|&end| end == place.segment) else { return };
        self.sweep(place.time_ns, findings);
        if let Some(flow) = self.inside[1 - end].get_mut(&frame.flow) {
            expire(flow, place.time_ns, findings);
            if let Some(at) = flow.iter().position(|entered| entered.leaves_as(frame)) {
                for entered in flow.drain(..at) {
                    self.overtaken.entry(entered.frame.marked).or_default().push(entered);
                }
                flow.pop_front();
                self.carried[1 - end] += 1;
                return;
            }
        }
        if let Some(late) = self.overtaken.get_mut(&frame.marked)
            && let Some(at) = late.iter().position(|entered| {
                entered.place.segment != place.segment && entered.leaves_as(frame)
            })
        {
            let Entered { place: entered, .. } = late.remove(at);
            findings.add(place, Rule::OtherReordered, || {
                format!("came in on {} as frame {}", entered.segment.name(), entered.frame)
            });
            self.carried[1 - end] += 1;
            return;
        }
        self.inside[end].entry(frame.flow).or_default().push_back(Entered { frame, place });
    }

    /// Removes idle flows and expired frames from time to time.
    fn sweep(&mut self, now_ns: u64, findings: &mut Findings) {
        if now_ns < self.sweep_at_ns {
            return;
        }
        self.sweep_at_ns = now_ns + EXPIRY_NS;
        for inside in &mut self.inside {
            inside.retain(|_, flow| {
                expire(flow, now_ns, findings);
                !flow.is_empty()
            });
        }
    }

    /// Ends the check: the captures end at `until_ns`, the later of the two.
    pub(super) fn finish(self, until_ns: u64, findings: &mut Findings) -> Passage {
        let mut under_way = 0;
        let mut lost: Vec<Entered> = self.overtaken.into_values().flatten().collect();
        for entered in self.inside.into_iter().flatten().flat_map(|(_, flow)| flow) {
            if entered.place.time_ns + UNDER_WAY_NS > until_ns {
                under_way += 1;
            } else {
                lost.push(entered);
            }
        }
        lost.sort_by_key(|entered| (entered.place.time_ns, entered.place.frame));
        for entered in lost {
            findings.add(entered.place, Rule::OtherLost, never_left);
        }
        Passage { between: self.ends, carried: self.carried, under_way }
    }
}
