//! Rules applied to the frames of one direction.

use super::{Action, Rule};
use crate::chance::Chance;
use longhaul_node::{Frame, Side, Trailer};
use longhaul_units::{Duration, Rng, SplitMix64};
use longhaul_wire::{ICRC_LEN, Packet};
use std::ops::RangeInclusive;

/// Activity of a rule in one direction.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RuleCounters {
    /// Frames that it selected, before occurrence and probability.
    pub selected_frames: u64,
    /// Selected frames on which it acted.
    pub struck_frames: u64,
}

/// Combined effects of all rules on one frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Effects {
    pub is_lost: bool,
    pub is_marked: bool,
    pub is_duplicated: bool,
    pub corrupted_bit: Option<u32>,
    /// Additional delay; later frames wait.
    pub delay: Duration,
    /// Additional delay; later frames overtake.
    pub late_by: Option<Duration>,
}

/// The rules of one direction, each with its own random stream.
pub(crate) struct ActiveRules {
    /// Rules for this direction.
    rules: Vec<ActiveRule>,
    /// By position in the configuration, including rules for the other direction only.
    counters: Vec<RuleCounters>,
}

struct ActiveRule {
    rule: Rule,
    /// Position in the configuration.
    index: usize,
    chance: Chance,
    /// Draws bits and delays.
    rng: SplitMix64,
}

impl ActiveRules {
    /// `None` if no rule applies to frames that enter on this side. The draws of one rule do not
    /// depend on the others.
    pub fn new(rules: &[Rule], entry: Side, seed: u64) -> Option<Self> {
        let mut seeds = SplitMix64::new(seed ^ 0x7275_6c65_7300);
        let active: Vec<ActiveRule> = rules
            .iter()
            .enumerate()
            .map(|(index, rule)| ActiveRule {
                rule: rule.clone(),
                index,
                chance: Chance::in_bursts(
                    rule.probability,
                    rule.bursts().as_ref(),
                    seeds.next_u64(),
                ),
                rng: SplitMix64::new(seeds.next_u64()),
            })
            .filter(|active| active.rule.is_for(entry))
            .collect();
        let counters = vec![RuleCounters::default(); rules.len()];
        (!active.is_empty()).then_some(ActiveRules { rules: active, counters })
    }

    /// By the rules' position in the configuration.
    pub fn counters(&self) -> &[RuleCounters] {
        &self.counters
    }

    /// The rules' effects on `frame`, which is at `place` in a train.
    pub fn judge(&mut self, frame: &Frame<'_>, place: u32) -> Effects {
        // A frame without a trailer is not RoCEv2, or malformed.
        let packet = if frame.trailer == Trailer::None {
            None
        } else {
            Packet::parse(frame.head).ok().flatten()
        };
        let mut effects = Effects::default();
        for active in &mut self.rules {
            if !active.rule.selects(frame, packet.as_ref(), place) {
                continue;
            }
            let counters = &mut self.counters[active.index];
            counters.selected_frames += 1;
            let is_due = active.rule.occurrence.takes(counters.selected_frames)
                && active.rule.at_most.is_none_or(|most| counters.struck_frames < most)
                && active.chance.take();
            if !is_due {
                continue;
            }
            counters.struck_frames += 1;
            active.apply(frame, &mut effects);
            if effects.is_lost {
                break;
            }
        }
        effects
    }
}

impl ActiveRule {
    fn apply(&mut self, frame: &Frame<'_>, effects: &mut Effects) {
        match &self.rule.action {
            Action::Lose => effects.is_lost = true,
            Action::Mark => effects.is_marked = true,
            Action::Duplicate => effects.is_duplicated = true,
            Action::CorruptIcrc => {
                let icrc = frame.len().saturating_sub(ICRC_LEN);
                effects.corrupted_bit = Some(bit_of(icrc, ICRC_LEN, &mut self.rng));
            }
            Action::CorruptPayload => {
                effects.corrupted_bit =
                    Some(bit_of(frame.head.len(), frame.payload.len(), &mut self.rng));
            }
            Action::Delay(times) => effects.delay = effects.delay + time_in(times, &mut self.rng),
            Action::Reorder(times) => {
                let late_by = effects.late_by.unwrap_or_default() + time_in(times, &mut self.rng);
                effects.late_by = Some(late_by);
            }
        }
    }
}

/// A random bit of the `len` bytes from `start` on.
fn bit_of(start: usize, len: usize, rng: &mut SplitMix64) -> u32 {
    (8 * start as u64 + rng.below(8 * len as u64)) as u32
}

/// A uniformly distributed time in the range.
fn time_in(times: &RangeInclusive<Duration>, rng: &mut SplitMix64) -> Duration {
    let span = (*times.end() - *times.start()).as_ps();
    if span == 0 {
        return *times.start();
    }
    *times.start() + Duration::from_ps(rng.below(span.saturating_add(1)))
}
