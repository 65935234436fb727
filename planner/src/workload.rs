//! The program's behaviour: perftest's loop.

use crate::Invalid;
use serde::Serialize;
use std::fmt;
use std::str::FromStr;
use thiserror::Error;

/// Operation of RDMA.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Op {
    /// RDMA WRITE.
    Write,
    /// SEND.
    Send,
    /// RDMA READ.
    Read,
    /// Compare and swap, fetch and add: 8 bytes.
    Atomic,
}

impl Op {
    /// `true` if the response carries the payload, and the limit on outstanding READs and atomics
    /// applies.
    pub fn is_answered(self) -> bool {
        matches!(self, Op::Read | Op::Atomic)
    }

    /// Name as in perftest's programs.
    pub fn name(self) -> &'static str {
        match self {
            Op::Write => "write",
            Op::Send => "send",
            Op::Read => "read",
            Op::Atomic => "atomic",
        }
    }
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// No operation has this name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("not an operation: write, send, read or atomic")]
pub struct UnknownOp;

impl FromStr for Op {
    type Err = UnknownOp;

    fn from_str(text: &str) -> Result<Self, UnknownOp> {
        [Op::Write, Op::Send, Op::Read, Op::Atomic]
            .into_iter()
            .find(|op| op.name().eq_ignore_ascii_case(text))
            .ok_or(UnknownOp)
    }
}

/// One program that serves its QPs in turn. It posts while fewer than `tx_depth` messages are
/// uncompleted, signals each `cq_mod`-th message, and subtracts `cq_mod` from the count at each
/// completion.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Workload {
    /// The operation.
    pub op: Op,
    /// Bytes of one message: 1 to 2^31 (IBTA: the longest message). Atomics: 8.
    pub size: u64,
    /// Queue pairs, at least 1.
    pub qps: u32,
    /// Messages that the program keeps posted on a QP, at least 1 (perftest -t).
    pub tx_depth: u32,
    /// Messages per completion, 1 to `tx_depth` (perftest -Q, and -l).
    pub cq_mod: u32,
    /// Messages of each QP in total (perftest -n); `None`: unlimited, so that the first and last
    /// window do not count.
    pub iterations: Option<u64>,
}

impl Workload {
    /// perftest's moderation of completions (perftest_parameters.c: `DEF_CQ_MOD`,
    /// `MSG_SIZE_CQ_MOD_LIMIT`).
    const CQ_MOD: u32 = 100;
    const CQ_MOD_SIZE_MAX: u64 = 8192;

    /// perftest's defaults for one size, unlimited: a completion for each 100th message (at most
    /// `tx_depth`), or for each message above 8 KiB.
    pub fn perftest(op: Op, size: u64, qps: u32, tx_depth: u32) -> Self {
        let cq_mod = if size > Self::CQ_MOD_SIZE_MAX { 1 } else { Self::CQ_MOD.min(tx_depth) };
        Workload { op, size, qps, tx_depth, cq_mod, iterations: None }
    }

    /// Validates every value.
    ///
    /// # Errors
    ///
    /// Names the first invalid value and its range.
    pub fn check(&self) -> Result<(), Invalid> {
        if !(1..=1 << 31).contains(&self.size) {
            return Err(Invalid::new("message size", self.size, "1 byte to 2 GiB"));
        }
        if !(1..=1 << 24).contains(&self.qps) {
            return Err(Invalid::new("queue pairs", self.qps, "1 to 2^24, as QPNs are"));
        }
        if !(1..=1 << 24).contains(&self.tx_depth) {
            return Err(Invalid::new("tx-depth", self.tx_depth, "1 to 2^24"));
        }
        if !(1..=self.tx_depth).contains(&self.cq_mod) {
            return Err(Invalid::new("cq-mod", self.cq_mod, "1 to the tx-depth"));
        }
        if self.iterations == Some(0) {
            return Err(Invalid::new("iterations", 0, "at least 1"));
        }
        Ok(())
    }
}
