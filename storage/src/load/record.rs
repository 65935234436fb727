//! What a load has written: for a check after its target, its path or a box has failed.

use super::job::ANSWER_WITHIN;
use super::oracle::{Mismatch, contents_differ};
use super::{LoadError, Outcome};
use crate::host::{Association, Queue};
use longhaul_nvme::host::{NamespaceInfo, Operation, OperationKind};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

/// Outstanding operations of a check.
const DEPTH: u16 = 32;

/// What a load has written.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// The namespace.
    pub namespace: u32,
    /// Bytes of an operation.
    pub operation_bytes: u32,
    /// What each job wrote.
    pub jobs: Vec<Written>,
}

/// What a job has written.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Written {
    /// Seed of the contents.
    pub(super) seed: u64,
    /// First block of its part of the namespace.
    pub(super) first: u64,
    /// Its written units, each of an operation's bytes.
    pub(super) units: BTreeMap<u64, Versions>,
}

/// Writes of a unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Versions {
    /// The last one that was acknowledged, from 1; 0 if none was.
    pub(super) acknowledged: u32,
    /// The last one that was begun.
    pub(super) begun: u32,
}

impl Versions {
    /// `true` if a block has the contents of one of the writes that may have been the last.
    fn allow(self, seed: u64, unit: u64, at: usize, block: &[u8]) -> bool {
        // Before its first write a unit may contain anything.
        self.acknowledged == 0
            || (self.acknowledged..=self.begun)
                .any(|version| contents_differ(seed, unit, version, at, block).is_none())
    }
}

impl Record {
    /// Reads everything that was written and acknowledged, and counts what is lost: blocks with
    /// contents of neither the last acknowledged write nor a later one.
    ///
    /// # Errors
    /// If the namespace is another one, or an operation fails.
    pub fn check(
        &self,
        association: &Association,
        stop: &AtomicBool,
    ) -> Result<Outcome, LoadError> {
        let info = association.namespace(Some(self.namespace));
        let info = info.ok_or(LoadError::NoNamespace(Some(self.namespace)))?;
        let blocks_each = self.blocks_each(&info).ok_or(LoadError::OtherNamespace)?;
        let depth = association.progress().entries_max.saturating_sub(1).min(DEPTH.into()) as u16;
        let mut queue = association.queue(1, depth, self.operation_bytes)?;
        let places = self
            .jobs
            .iter()
            .flat_map(|job| job.units.iter().map(move |(unit, versions)| (job, *unit, *versions)));
        let mut places = places.peekable();
        let mut outcome = Outcome::default();
        let mut bytes = vec![0; self.operation_bytes as usize];
        let mut answers = Vec::new();
        let mut answered = Instant::now();
        while (places.peek().is_some() || queue.outstanding() > 0) && !stop.load(Ordering::Relaxed)
        {
            while queue.next_slot().is_some()
                && let Some(place) = places.next()
            {
                let (job, unit, _) = place;
                let operation = Operation {
                    kind: OperationKind::Read,
                    namespace: self.namespace,
                    block: job.first + unit * u64::from(blocks_each),
                    blocks: blocks_each,
                    bytes: self.operation_bytes,
                };
                queue.submit(&operation, place);
            }
            queue.wait(|_: &Queue<_>, answer| answers.push(answer))?;
            if !answers.is_empty() {
                answered = Instant::now();
            } else if answered.elapsed() > ANSWER_WITHIN {
                return Err(LoadError::Silent(queue.outstanding(), ANSWER_WITHIN));
            }
            for answer in answers.drain(..) {
                let (job, unit, versions) = answer.context;
                let block = job.first + unit * u64::from(blocks_each);
                if !answer.status.is_success() {
                    let (kind, status) = (OperationKind::Read, answer.status);
                    return Err(LoadError::Operation { kind, block, status });
                }
                queue.read(answer.slot, &mut bytes);
                outcome.verified += 1;
                let len = 1 << info.data.block_shift;
                let mut pieces = (0..).step_by(len).zip(bytes.chunks(len));
                if let Some((at, _)) =
                    pieces.find(|(at, piece)| !versions.allow(job.seed, unit, *at, piece))
                {
                    outcome.mismatches += 1;
                    outcome.first_mismatch.get_or_insert(Mismatch {
                        block,
                        at: at as u32,
                        version: versions.acknowledged,
                    });
                }
            }
        }
        queue.end();
        Ok(outcome)
    }

    /// Blocks of an operation, if the record fits the namespace.
    fn blocks_each(&self, info: &NamespaceInfo) -> Option<u32> {
        let block = 1_u32 << info.data.block_shift;
        let each = self.operation_bytes / block;
        let is_whole = each > 0 && self.operation_bytes.is_multiple_of(block);
        let fits = |job: &Written| {
            let last = job.units.keys().next_back().map_or(Some(0), |unit| unit.checked_add(1));
            let end = last
                .and_then(|units| units.checked_mul(each.into()))
                .and_then(|blocks| blocks.checked_add(job.first));
            end.is_some_and(|end| end <= info.data.blocks)
        };
        let is_in_order = |versions: &Versions| versions.acknowledged <= versions.begun;
        let are_in_order = |job: &Written| job.units.values().all(is_in_order);
        (is_whole && self.jobs.iter().all(|job| fits(job) && are_in_order(job))).then_some(each)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::oracle::Oracle;

    #[test]
    fn a_block_may_have_any_write_from_the_acknowledged_one_on() {
        let mut oracle = Oracle::new(7, 3);
        let mut written = [[0; 1024]; 4];
        for bytes in &mut written {
            oracle.fill(2, bytes);
        }
        let versions = Versions { acknowledged: 2, begun: 3 };
        let allowed = |version: usize, at: usize| {
            versions.allow(7, 2, at, &written[version - 1][at..at + 512])
        };
        for at in [0, 512] {
            assert_eq!(
                [1, 2, 3, 4].map(|version| allowed(version, at)),
                [false, true, true, false]
            );
        }
        // The two halves may be of two writes, each only in its place.
        assert!(!versions.allow(7, 2, 0, &written[1][512..]));
        let never = Versions { acknowledged: 0, begun: 1 };
        assert!(never.allow(7, 2, 0, &[0; 512]), "it was never written");
    }
}
