//! Faults other than queue drops and random loss: cuts, impairments, rules.
//!
//! A link without faults has no injector.

use crate::chance::Chance;
use crate::config::{Cut, Impairments, LinkConfig};
use crate::counters::LinkCounters;
use crate::rule::{ActiveRules, Effects, RuleCounters};
use crate::wire::Arrival;
use longhaul_node::{Frame, Side};
use longhaul_units::{Duration, Instant, Rng, SplitMix64};

/// Leading bits of a frame that are never flipped at random: a frame to another destination would
/// not be received at all.
const ADDRESS_BITS: u64 = 96;

pub(crate) struct FaultInjector {
    cuts: Vec<Cut>,
    random: Option<RandomImpairments>,
    rules: Option<ActiveRules>,
    /// Due time of the last late frame; late frames keep their order among themselves.
    last_late_due: Instant,
}

impl FaultInjector {
    /// `None` if the configuration has no faults.
    pub fn new(config: &LinkConfig, entry: Side, seed: u64) -> Option<Box<Self>> {
        let scripted = config.changes.iter().filter_map(|change| change.cut());
        let fault_injector = FaultInjector {
            cuts: config.cut.into_iter().chain(scripted).collect(),
            random: (!config.impairments.is_none())
                .then(|| RandomImpairments::new(&config.impairments, seed)),
            rules: ActiveRules::new(&config.rules, entry, seed),
            last_late_due: Instant::ZERO,
        };
        let is_none = fault_injector.cuts.is_empty()
            && fault_injector.random.is_none()
            && fault_injector.rules.is_none();
        (!is_none).then(|| Box::new(fault_injector))
    }

    /// True if a frame sent at this time is lost to a cut.
    pub fn is_cut(&self, sent_at: Instant) -> bool {
        self.cuts.iter().any(|cut| cut.is_on(sent_at))
    }

    /// The rules' effects on `frame`, which is at `place` in a train.
    pub fn judge(&mut self, frame: &Frame<'_>, place: u32) -> Effects {
        self.rules.as_mut().map_or_else(Effects::default, |rules| rules.judge(frame, place))
    }

    /// Applies impairments and the rules' `effects` to a frame of `len` bytes that would arrive at
    /// `due` with this mark.
    pub fn apply(
        &mut self,
        due: Instant,
        is_marked: bool,
        len: usize,
        effects: Effects,
        counters: &mut LinkCounters,
    ) -> Arrival {
        let mut arrival = Arrival {
            due,
            is_marked: is_marked || effects.is_marked,
            is_late: false,
            is_duplicated: effects.is_duplicated,
            corrupted_bit: effects.corrupted_bit,
        };
        let mut late_by = effects.late_by;
        if let Some(random) = &mut self.random {
            if random.late.take() {
                late_by = Some(late_by.unwrap_or_default() + random.late_by);
            }
            arrival.is_duplicated |= random.duplication.take();
            if let Some(bit) = random.corrupted_bit(len) {
                arrival.corrupted_bit = arrival.corrupted_bit.or(Some(bit));
            }
        }
        if let Some(late_by) = late_by {
            self.last_late_due = self.last_late_due.max(due + late_by);
            (arrival.due, arrival.is_late) = (self.last_late_due, true);
        }
        counters.late_frames += u64::from(arrival.is_late);
        counters.duplicated_frames += u64::from(arrival.is_duplicated);
        counters.corrupted_frames += u64::from(arrival.corrupted_bit.is_some());
        arrival
    }

    /// By the rules' position in the configuration.
    pub fn rule_counters(&self) -> &[RuleCounters] {
        self.rules.as_ref().map_or(&[], ActiveRules::counters)
    }
}

/// Random impairments. Each has its own random stream, so that none changes another's draws.
struct RandomImpairments {
    late: Chance,
    late_by: Duration,
    duplication: Chance,
    corruption: Chance,
    bits: SplitMix64,
}

impl RandomImpairments {
    fn new(config: &Impairments, seed: u64) -> Self {
        let mut seeds = SplitMix64::new(seed.rotate_left(32) ^ 0x696d_7061_6972);
        let mut stream = |probability| Chance::new(probability, seeds.next_u64());
        let [late, duplication, corruption] =
            [config.late, config.duplication, config.corruption].map(&mut stream);
        RandomImpairments {
            late,
            late_by: config.late_by,
            duplication,
            corruption,
            bits: SplitMix64::new(seeds.next_u64()),
        }
    }

    /// The bit to flip in a frame of `len` bytes, if any.
    fn corrupted_bit(&mut self, len: usize) -> Option<u32> {
        let bits = (8 * len as u64).saturating_sub(ADDRESS_BITS);
        (self.corruption.take() && bits > 0).then(|| (ADDRESS_BITS + self.bits.below(bits)) as u32)
    }
}
