//! Frames that are not RoCEv2 pass a box unchanged, completely and in order.

use super::{Findings, FramePosition, Passage, Rule, Segment};
use std::collections::{HashMap, VecDeque};

/// Frames that entered this long before the end of a box's captures must have left it.
const UNDER_WAY_NS: u64 = 1_000_000_000;
/// Age at which a frame that has not left is lost.
const EXPIRY_NS: u64 = 10_000_000_000;

/// A box between two captures. The capture that has a frame first determines its direction.
pub(super) struct Box {
    pub(super) ends: [Segment; 2],
    /// Frames that entered at either end and have not left.
    inside: [VecDeque<(u64, FramePosition)>; 2],
    /// Frames overtaken by later ones, by hash.
    overtaken: HashMap<u64, Vec<FramePosition>>,
    carried: [u64; 2],
}

fn never_left() -> String {
    "it never leaves the box as it came in".to_owned()
}

impl Box {
    pub(super) fn new(ends: [Segment; 2]) -> Self {
        Box { ends, inside: Default::default(), overtaken: HashMap::new(), carried: [0; 2] }
    }

    pub(super) fn see(&mut self, place: FramePosition, hash: u64, findings: &mut Findings) {
        let Some(end) = self.ends.iter().position(|&end| end == place.segment) else { return };
        for inside in &mut self.inside {
            while let Some((_, entered)) =
                inside.front().filter(|(_, e)| e.time_ns + EXPIRY_NS < place.time_ns)
            {
                findings.add(*entered, Rule::OtherLost, never_left);
                inside.pop_front();
            }
        }
        let from = &mut self.inside[1 - end];
        if let Some(at) = from.iter().position(|(inside, _)| *inside == hash) {
            for (hash, entered) in from.drain(..at) {
                self.overtaken.entry(hash).or_default().push(entered);
            }
            from.pop_front();
            self.carried[1 - end] += 1;
            return;
        }
        if let Some(late) = self.overtaken.get_mut(&hash)
            && let Some(at) = late.iter().position(|entered| entered.segment != place.segment)
        {
            let entered = late.remove(at);
            findings.add(place, Rule::OtherReordered, || {
                format!("came in on {} as frame {}", entered.segment.name(), entered.frame)
            });
            self.carried[1 - end] += 1;
            return;
        }
        self.inside[end].push_back((hash, place));
    }

    /// Ends the check: the captures end at `until_ns`, the later of the two.
    pub(super) fn finish(self, until_ns: u64, findings: &mut Findings) -> Passage {
        let mut under_way = 0;
        let mut lost: Vec<FramePosition> = self.overtaken.into_values().flatten().collect();
        for (_, entered) in self.inside.into_iter().flatten() {
            if entered.time_ns + UNDER_WAY_NS > until_ns {
                under_way += 1;
            } else {
                lost.push(entered);
            }
        }
        lost.sort_by_key(|entered| entered.time_ns);
        for entered in lost {
            findings.add(entered, Rule::OtherLost, never_left);
        }
        Passage { between: self.ends, carried: self.carried, under_way }
    }
}
