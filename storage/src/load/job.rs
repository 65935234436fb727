//! A job of a load: one thread, one queue, one part of the namespace.

use super::oracle::{Mismatch, Oracle};
use super::record::Written;
use super::{Direction, Load, LoadError, Mix, Outcome, Part, Until};
use crate::host::Queue;
use longhaul_nvme::host::{Answer, Operation, OperationKind};
use longhaul_units::{Rng, SplitMix64};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Longest time without an answer while operations are outstanding.
pub(super) const ANSWER_WITHIN: Duration = Duration::from_secs(60);

/// An outstanding operation.
pub(super) struct Pending {
    kind: OperationKind,
    unit: u64,
    at: Instant,
}

/// What a job does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    /// The load.
    Load,
    /// Reads what was written.
    Check,
}

pub(super) struct Job<'a> {
    queue: Queue<Pending>,
    part: Part,
    load: &'a Load,
    rng: SplitMix64,
    oracle: Option<Oracle>,
    /// Next unit in sequence.
    next: u64,
    submitted: u64,
    /// When the last answer came.
    answered: Instant,
    phase: Phase,
    counts_from: Instant,
    ends_at: Option<Instant>,
    outcome: Outcome,
    bytes: Vec<u8>,
    answers: Vec<Answer<Pending>>,
    failure: Option<LoadError>,
}

impl<'a> Job<'a> {
    pub(super) fn new(
        queue: Queue<Pending>,
        part: Part,
        load: &'a Load,
        number: u64,
        start: Instant,
    ) -> Self {
        let seed = SplitMix64::new(load.seed ^ number.rotate_left(32)).next_u64();
        let counts_from = start + load.ramp;
        Job {
            queue,
            part,
            load,
            rng: SplitMix64::new(seed),
            oracle: load.verify.then(|| Oracle::new(seed, part.units)),
            next: 0,
            submitted: 0,
            answered: start,
            phase: Phase::Load,
            counts_from,
            ends_at: match load.until {
                Until::Time(time) => Some(counts_from + time),
                Until::Operations(_) => None,
            },
            outcome: Outcome::default(),
            bytes: vec![0; load.block_bytes as usize],
            answers: Vec::new(),
            failure: None,
        }
    }

    /// Runs the load, and checks what was written. Ends early when one of `stops` is set. Returns
    /// what has been written, too, if it verifies.
    pub(super) fn run(
        mut self,
        stops: [&AtomicBool; 2],
    ) -> (Result<Outcome, LoadError>, Option<Written>) {
        let ended = self.run_to_end(stops);
        let Job { queue, part, oracle, outcome, failure, .. } = self;
        let written = oracle.map(|oracle| oracle.record(part.first));
        if ended.is_ok() {
            queue.end();
        }
        (ended.and(failure.map_or(Ok(outcome), Err)), written)
    }

    fn run_to_end(&mut self, stops: [&AtomicBool; 2]) -> Result<(), LoadError> {
        let is_stopped = || stops.iter().any(|stop| stop.load(Ordering::Relaxed));
        while !is_stopped() && self.failure.is_none() {
            let now = Instant::now();
            if self.ends_at.is_some_and(|end| now >= end) || self.is_complete() {
                break;
            }
            while let Some(slot) = self.queue.next_slot() {
                if self.is_complete() {
                    break;
                }
                self.start_next(slot);
            }
            self.wait()?;
        }
        self.drain()?;
        let end = self.ends_at.unwrap_or_else(Instant::now).min(Instant::now());
        self.outcome.runtime = end.saturating_duration_since(self.counts_from);
        self.check(is_stopped)
    }

    fn is_complete(&self) -> bool {
        matches!(self.load.until, Until::Operations(count) if self.submitted >= count)
    }

    /// Reads everything that was written.
    fn check(&mut self, is_stopped: impl Fn() -> bool) -> Result<(), LoadError> {
        let Some(oracle) = &self.oracle else { return Ok(()) };
        let mut written: Vec<u64> = oracle.written().collect();
        self.phase = Phase::Check;
        while self.failure.is_none() && !is_stopped() && !written.is_empty() {
            while self.queue.next_slot().is_some()
                && let Some(unit) = written.pop()
            {
                self.submit(OperationKind::Read, unit);
            }
            self.wait()?;
        }
        self.drain()
    }

    fn drain(&mut self) -> Result<(), LoadError> {
        while self.queue.outstanding() > 0 {
            self.wait()?;
        }
        Ok(())
    }

    fn start_next(&mut self, slot: u16) {
        let kind = match self.load.pattern.mix {
            Mix::Read => OperationKind::Read,
            Mix::Write => OperationKind::Write,
            Mix::Both if self.rng.below(100) < self.load.read_percent.into() => OperationKind::Read,
            Mix::Both => OperationKind::Write,
        };
        let mut unit = if self.load.pattern.is_random {
            self.rng.below(self.part.units)
        } else {
            let unit = self.next;
            self.next = if unit + 1 == self.part.units { 0 } else { unit + 1 };
            unit
        };
        if let Some(oracle) = &mut self.oracle {
            // As many units as slots, at least.
            unit = oracle.reserve(unit).unwrap_or(unit);
            if kind == OperationKind::Write {
                oracle.fill(unit, &mut self.bytes);
                self.queue.write(slot, &self.bytes);
            }
        }
        self.submitted += 1;
        self.submit(kind, unit);
    }

    fn submit(&mut self, kind: OperationKind, unit: u64) {
        if kind == OperationKind::Read
            && let (Some(oracle), Some(slot)) = (&self.oracle, self.queue.next_slot())
        {
            // What the slot had before must not pass for what a target transfers.
            oracle.complement(unit, &mut self.bytes);
            self.queue.write(slot, &self.bytes);
        }
        let operation = Operation {
            kind,
            namespace: self.part.namespace,
            block: self.block(unit),
            blocks: self.part.blocks_each,
            bytes: self.load.block_bytes,
        };
        self.queue.submit(&operation, Pending { kind, unit, at: Instant::now() });
    }

    fn block(&self, unit: u64) -> u64 {
        self.part.first + unit * u64::from(self.part.blocks_each)
    }

    fn wait(&mut self) -> Result<(), LoadError> {
        let mut answers = std::mem::take(&mut self.answers);
        self.queue.wait(|_, answer| answers.push(answer))?;
        let now = Instant::now();
        let outstanding = self.queue.outstanding();
        if !answers.is_empty() {
            self.answered = now;
        } else if outstanding > 0 && now > self.answered + ANSWER_WITHIN {
            return Err(LoadError::Silent(outstanding, ANSWER_WITHIN));
        }
        for answer in answers.drain(..) {
            self.completed(now, answer);
        }
        self.answers = answers;
        Ok(())
    }

    fn completed(&mut self, now: Instant, answer: Answer<Pending>) {
        let Answer { slot, status, context: Pending { kind, unit, at } } = answer;
        if !status.is_success() {
            let block = self.block(unit);
            self.failure.get_or_insert(LoadError::Operation { kind, block, status });
            return;
        }
        let is_counted = self.phase == Phase::Load
            && now >= self.counts_from
            && self.ends_at.is_none_or(|end| now < end);
        if is_counted {
            let latency: Duration = now.saturating_duration_since(at);
            let direction: &mut Direction = match kind {
                OperationKind::Read => &mut self.outcome.reads,
                _ => &mut self.outcome.writes,
            };
            direction.count(self.load.block_bytes, latency);
        }
        self.verify(slot, kind, unit);
    }

    fn verify(&mut self, slot: u16, kind: OperationKind, unit: u64) {
        let block = self.block(unit);
        let Some(oracle) = &mut self.oracle else { return };
        oracle.release(unit);
        if kind == OperationKind::Write {
            oracle.acknowledge(unit);
        }
        let version = oracle.version(unit);
        if kind != OperationKind::Read || version == 0 {
            return;
        }
        self.queue.read(slot, &mut self.bytes);
        self.outcome.verified += 1;
        if let Some(at) = oracle.differs(unit, &self.bytes) {
            self.outcome.mismatches += 1;
            self.outcome.first_mismatch.get_or_insert(Mismatch { block, at, version });
        }
    }
}
