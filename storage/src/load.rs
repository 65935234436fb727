//! Load in fio's terms: pattern, block size, depth, jobs, mix, runtime and ramp.

mod job;
mod oracle;
mod record;

pub use oracle::Mismatch;
pub use record::{Record, Written};

use crate::host::{Association, AssociationError};
use hdrhistogram::Histogram;
use longhaul_nvme::Status;
use longhaul_nvme::host::OperationKind;
use std::fmt;
use std::str::FromStr;
use std::sync::atomic::AtomicBool;
use std::time::Duration;
use thiserror::Error;

/// Which blocks a load accesses, and how.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Pattern {
    /// In random order.
    pub is_random: bool,
    /// Reads, writes or both.
    pub mix: Mix,
}

/// Kinds of operations of a load.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mix {
    /// Reads.
    Read,
    /// Writes.
    Write,
    /// Both.
    Both,
}

/// Fio's names of patterns.
const PATTERNS: [(&str, Pattern); 6] = [
    ("read", Pattern { is_random: false, mix: Mix::Read }),
    ("write", Pattern { is_random: false, mix: Mix::Write }),
    ("rw", Pattern { is_random: false, mix: Mix::Both }),
    ("randread", Pattern { is_random: true, mix: Mix::Read }),
    ("randwrite", Pattern { is_random: true, mix: Mix::Write }),
    ("randrw", Pattern { is_random: true, mix: Mix::Both }),
];

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = PATTERNS.iter().find(|(_, pattern)| pattern == self);
        f.write_str(name.map_or("", |(name, _)| name))
    }
}

/// No pattern has this name.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[error("'{0}' is none of read, write, rw, randread, randwrite and randrw")]
pub struct UnknownPattern(String);

impl FromStr for Pattern {
    type Err = UnknownPattern;

    fn from_str(text: &str) -> Result<Self, UnknownPattern> {
        let named = PATTERNS.iter().find(|(name, _)| *name == text);
        named.map(|(_, pattern)| *pattern).ok_or_else(|| UnknownPattern(text.to_owned()))
    }
}

/// When a load ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Until {
    /// After this time, behind the ramp.
    Time(Duration),
    /// After this many operations of each job.
    Operations(u64),
}

/// A load.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    /// Pattern.
    pub pattern: Pattern,
    /// Bytes of an operation.
    pub block_bytes: u32,
    /// Outstanding operations of a job.
    pub depth: u16,
    /// Jobs, each with a thread, a queue and a part of the namespace.
    pub jobs: u16,
    /// Percentage of reads, if the pattern has both.
    pub read_percent: u8,
    /// When it ends.
    pub until: Until,
    /// Time before operations are counted.
    pub ramp: Duration,
    /// Bytes of the namespace to use; `None` means all.
    pub bytes: Option<u64>,
    /// Namespace; `None` means the first.
    pub namespace: Option<u32>,
    /// Write data that can be recognised, and check all that is read. At the end, everything that
    /// was written is read and checked.
    pub verify: bool,
    /// Seed of order, mix and data.
    pub seed: u64,
}

/// Operations of one kind.
#[derive(Clone, Debug)]
pub struct Direction {
    /// Completed operations.
    pub operations: u64,
    /// Their bytes.
    pub bytes: u64,
    /// From submission to completion, in ns.
    pub latency: Histogram<u64>,
}

impl Default for Direction {
    fn default() -> Self {
        // Three digits, up to an hour: constants that are always accepted.
        let latency = Histogram::new_with_bounds(1, 3_600_000_000_000, 3);
        Direction { operations: 0, bytes: 0, latency: latency.expect("valid bounds") }
    }
}

impl Direction {
    fn count(&mut self, bytes: u32, latency: Duration) {
        self.operations += 1;
        self.bytes += u64::from(bytes);
        let ns = u64::try_from(latency.as_nanos()).unwrap_or(u64::MAX);
        self.latency.saturating_record(ns);
    }

    fn add(&mut self, other: &Direction) {
        self.operations += other.operations;
        self.bytes += other.bytes;
        // Equal bounds.
        let _ = self.latency.add(&other.latency);
    }
}

/// What a load measured.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// Reads.
    pub reads: Direction,
    /// Writes.
    pub writes: Direction,
    /// Time for which operations were counted.
    pub runtime: Duration,
    /// Blocks whose contents were compared with what was written.
    pub verified: u64,
    /// Blocks with other contents.
    pub mismatches: u64,
    /// The first of them.
    pub first_mismatch: Option<Mismatch>,
}

impl Outcome {
    fn add(&mut self, other: &Outcome) {
        self.reads.add(&other.reads);
        self.writes.add(&other.writes);
        self.runtime = self.runtime.max(other.runtime);
        self.verified += other.verified;
        self.mismatches += other.mismatches;
        self.first_mismatch = self.first_mismatch.or(other.first_mismatch);
    }
}

/// Why a load failed.
#[derive(Debug, Error)]
pub enum LoadError {
    /// No such namespace.
    #[error("the subsystem has no namespace {}", .0.map_or("at all".to_owned(), |n| n.to_string()))]
    NoNamespace(Option<u32>),
    /// A block size that the namespace does not have.
    #[error(
        "operations of {given} bytes are no multiple of the namespace's blocks of {block} bytes"
    )]
    BlockSize {
        /// As given.
        given: u32,
        /// Of the namespace.
        block: u64,
    },
    /// Operations that the controller does not take.
    #[error("operations of {given} bytes exceed the controller's limit of {max} bytes")]
    TransferTooLong {
        /// As given.
        given: u32,
        /// The limit.
        max: u64,
    },
    /// More outstanding operations than a queue can have.
    #[error("a depth of {given} exceeds the controller's limit of {max}")]
    TooDeep {
        /// As given.
        given: u16,
        /// The limit.
        max: u32,
    },
    /// Fewer queues than jobs.
    #[error("the controller grants {granted} I/O queues for {jobs} jobs")]
    TooFewQueues {
        /// Granted.
        granted: u16,
        /// Needed.
        jobs: u16,
    },
    /// A part of the namespace that is too small.
    #[error("{bytes} bytes are too few: {jobs} jobs at depth {depth} need {needed}")]
    TooSmall {
        /// Bytes to use.
        bytes: u64,
        /// Jobs.
        jobs: u16,
        /// Depth.
        depth: u16,
        /// Bytes needed.
        needed: u64,
    },
    /// An operation failed.
    #[error("{kind:?} at block {block} failed: {status}")]
    Operation {
        /// Kind.
        kind: OperationKind,
        /// First block.
        block: u64,
        /// The controller's status.
        status: Status,
    },
    /// The controller answers no operation.
    #[error("none of {0} outstanding operations was answered within {1:?}")]
    Silent(usize, Duration),
    /// A record of another namespace, or a damaged one.
    #[error("the record is not of this namespace")]
    OtherNamespace,
    /// The association failed.
    #[error(transparent)]
    Association(#[from] AssociationError),
    /// A thread ended without a result.
    #[error("a job's thread panicked")]
    Panicked,
}

/// A part of a namespace for one job.
#[derive(Clone, Copy, Debug)]
struct Part {
    namespace: u32,
    /// First block of the namespace.
    first: u64,
    /// Blocks of the namespace per operation.
    blocks_each: u32,
    /// Number of operations that fit.
    units: u64,
}

/// Runs a load until its end, or until `stop` is set.
///
/// # Errors
/// If the load does not fit the controller, or an operation fails.
pub fn run(
    association: &Association,
    load: &Load,
    stop: &AtomicBool,
) -> Result<Outcome, LoadError> {
    run_recorded(association, load, stop).and_then(|(outcome, _)| outcome)
}

/// Runs a load with verification as [`run`], and returns what it has written, even if it fails on
/// the way.
///
/// # Errors
/// If the load does not fit the controller.
pub fn run_recorded(
    association: &Association,
    load: &Load,
    stop: &AtomicBool,
) -> Result<(Result<Outcome, LoadError>, Record), LoadError> {
    let parts = parts(association, load)?;
    let namespace = parts.first().map_or(0, |part| part.namespace);
    let mut queues = Vec::new();
    for job in 1..=load.jobs {
        queues.push(association.queue(job, load.depth, load.block_bytes)?);
    }
    let fails = AtomicBool::new(false);
    let start = std::time::Instant::now();
    let outcomes: Vec<(Result<Outcome, LoadError>, Option<Written>)> =
        std::thread::scope(|scope| {
            let numbered = (0..).zip(queues.into_iter().zip(parts));
            let jobs = numbered.map(|(number, (queue, part))| {
                let (fails, stops) = (&fails, [stop, &fails]);
                scope.spawn(move || {
                    let outcome = job::Job::new(queue, part, load, number, start).run(stops);
                    if outcome.0.is_err() {
                        fails.store(true, std::sync::atomic::Ordering::Relaxed);
                    }
                    outcome
                })
            });
            let jobs: Vec<_> = jobs.collect();
            let ended = |job: std::thread::ScopedJoinHandle<'_, _>| {
                job.join().unwrap_or((Err(LoadError::Panicked), None))
            };
            jobs.into_iter().map(ended).collect()
        });
    let (outcomes, written): (Vec<_>, Vec<_>) = outcomes.into_iter().unzip();
    let total = outcomes.into_iter().try_fold(Outcome::default(), |mut total, outcome| {
        total.add(&outcome?);
        Ok(total)
    });
    let jobs = written.into_iter().flatten().collect();
    Ok((total, Record { namespace, operation_bytes: load.block_bytes, jobs }))
}

/// Checks the load against the controller, and divides the namespace among the jobs.
fn parts(association: &Association, load: &Load) -> Result<Vec<Part>, LoadError> {
    let Load { namespace: number, block_bytes: given, depth, jobs, .. } = *load;
    let namespace = association.namespace(number).ok_or(LoadError::NoNamespace(number))?;
    let block = 1_u64 << namespace.data.block_shift;
    let blocks_each = u64::from(given) / block;
    if blocks_each == 0 || !u64::from(given).is_multiple_of(block) || blocks_each > 1 << 16 {
        return Err(LoadError::BlockSize { given, block });
    }
    let max = association.transfer_max();
    if u64::from(given) > max {
        return Err(LoadError::TransferTooLong { given, max });
    }
    let max = association.progress().entries_max.saturating_sub(1);
    let max = max.min(longhaul_nvme::host::DEPTH_MAX.into());
    if u32::from(depth) > max {
        return Err(LoadError::TooDeep { given: depth, max });
    }
    let granted = association.progress().queues;
    if granted < jobs {
        return Err(LoadError::TooFewQueues { granted, jobs });
    }
    let all = namespace.data.blocks * block;
    let bytes = load.bytes.unwrap_or(all).min(all);
    let units = bytes / u64::from(given) / u64::from(jobs.max(1));
    // With verification a block that an operation uses is left alone by others.
    let needed = if load.verify { u64::from(depth) } else { 1 };
    if units < needed {
        let needed = needed * u64::from(jobs) * u64::from(given);
        return Err(LoadError::TooSmall { bytes, jobs, depth, needed });
    }
    let part = |job: u64| Part {
        namespace: namespace.number,
        first: job * units * blocks_each,
        blocks_each: blocks_each as u32,
        units,
    };
    Ok((0..jobs.into()).map(part).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_have_fios_names() {
        for (name, pattern) in PATTERNS {
            assert_eq!(name.parse(), Ok(pattern));
            assert_eq!(pattern.to_string(), name);
        }
        assert!("trim".parse::<Pattern>().unwrap_err().to_string().starts_with("'trim' is none"));
    }
}
