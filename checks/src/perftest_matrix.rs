//! All combinations of perftest's programs, transports, connection methods and options, with their
//! expected outcomes.
//!
//! A [`Case`] is one combination. It must either complete with plausible figures, or be refused by
//! perftest itself, with a message that [`refusals`] predicts and explains. No other outcome is
//! accepted.

mod refusals;
mod report;
mod run;
mod variations;

pub use refusals::{Refusal, refusals};
pub use report::{json, markdown};
pub use run::{Outcome, Run, run};
pub use variations::{Sizes, VARIATIONS, Variation};

use std::fmt;

/// The operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    /// RDMA WRITE.
    Write,
    /// RDMA READ.
    Read,
    /// SEND and receive.
    Send,
    /// FETCH_ADD, or CMP_SWAP on request.
    Atomic,
}

/// The measured quantity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Measure {
    /// `_bw`.
    Bandwidth,
    /// `_lat`.
    Latency,
}

/// The transport, `-c`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// Reliable connection.
    Rc,
    /// Unreliable connection.
    Uc,
    /// Unreliable datagram.
    Ud,
}

/// Connection method.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum By {
    /// Over TCP.
    Tcp,
    /// Over RDMA-CM, `-R`.
    RdmaCm,
}

/// All programs: the columns of the tables.
pub const PROGRAMS: [(Verb, Measure); 8] = [
    (Verb::Write, Measure::Bandwidth),
    (Verb::Write, Measure::Latency),
    (Verb::Read, Measure::Bandwidth),
    (Verb::Read, Measure::Latency),
    (Verb::Send, Measure::Bandwidth),
    (Verb::Send, Measure::Latency),
    (Verb::Atomic, Measure::Bandwidth),
    (Verb::Atomic, Measure::Latency),
];
/// All transports and connection methods: one table each.
pub const TABLES: [(Transport, By); 6] = [
    (Transport::Rc, By::Tcp),
    (Transport::Rc, By::RdmaCm),
    (Transport::Uc, By::Tcp),
    (Transport::Uc, By::RdmaCm),
    (Transport::Ud, By::Tcp),
    (Transport::Ud, By::RdmaCm),
];

/// One combination.
#[derive(Clone, Copy)]
pub struct Case {
    /// The operation.
    pub verb: Verb,
    /// The measured quantity.
    pub measure: Measure,
    /// The transport.
    pub transport: Transport,
    /// Connection method.
    pub by: By,
    /// The options, and the expected outcome.
    pub variation: &'static Variation,
}

impl Case {
    /// Every case of the matrix.
    pub fn all() -> Vec<Case> {
        let mut all = Vec::new();
        for (transport, by) in TABLES {
            for variation in VARIATIONS {
                for (verb, measure) in PROGRAMS {
                    let case = Case { verb, measure, transport, by, variation };
                    if (variation.applies)(&case) {
                        all.push(case);
                    }
                }
            }
        }
        all
    }

    /// The program's name.
    pub fn program(&self) -> String {
        let verb = match self.verb {
            Verb::Write => "write",
            Verb::Read => "read",
            Verb::Send => "send",
            Verb::Atomic => "atomic",
        };
        let measure = match self.measure {
            Measure::Bandwidth => "bw",
            Measure::Latency => "lat",
        };
        format!("ib_{verb}_{measure}")
    }

    /// Name of the transport on the command line.
    pub fn transport_name(&self) -> &'static str {
        match self.transport {
            Transport::Rc => "RC",
            Transport::Uc => "UC",
            Transport::Ud => "UD",
        }
    }

    /// The server's command line; the client's also has the server's address. `port` is a TCP port,
    /// or one of RDMA-CM.
    pub fn line(&self, port: u16) -> String {
        let mut line = format!("{} -d longhaul0 -F -p {port}", self.program());
        if self.transport != Transport::Rc {
            line += &format!(" -c {}", self.transport_name());
        }
        if self.by == By::RdmaCm {
            line += " -R";
        }
        if !self.variation.for_a_time {
            line += &format!(" -n {}", self.variation.iterations);
        }
        if let (Sizes::One(_), false) = (self.variation.sizes, self.verb == Verb::Atomic) {
            line += &format!(" -s {}", self.sizes()[0]);
        }
        if !self.variation.options.is_empty() {
            line += &format!(" {}", self.variation.options);
        }
        if self.transport == Transport::Rc && !self.variation.options.contains("-u ") {
            // A second, seven times: pairs starve one another, and a peer that waits for a
            // processor is not gone.
            line += " -u 18";
        }
        line
    }

    /// The message sizes whose results must be printed.
    pub fn sizes(&self) -> Vec<u64> {
        /// perftest's default: the port's largest path MTU.
        const DEFAULT_MTU: u64 = 4096;
        let limit = match self.transport {
            Transport::Ud => self.variation.mtu.map_or(DEFAULT_MTU, u64::from),
            _ => 1 << 23,
        };
        match self.variation.sizes {
            _ if self.verb == Verb::Atomic => vec![8],
            Sizes::One(size) => vec![size.min(limit)],
            Sizes::All => (1..=23).map(|power| 1 << power).filter(|&size| size <= limit).collect(),
        }
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let by = if self.by == By::RdmaCm { " -R" } else { "" };
        write!(f, "{} {}{by} {}", self.program(), self.transport_name(), self.variation.options)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_variation_is_there_twice() {
        for (number, variation) in VARIATIONS.iter().enumerate() {
            let again =
                VARIATIONS[number + 1..].iter().any(|other| other.options == variation.options);
            assert!(!again, "{}", variation.options);
        }
    }

    #[test]
    fn the_axes_that_every_program_is_tried_with_are_complete() {
        let plain =
            VARIATIONS.iter().find(|variation| variation.options.is_empty()).expect("no options");
        let cases = Case::all();
        let of_plain = cases.iter().filter(|case| std::ptr::eq(case.variation, plain)).count();
        assert_eq!(of_plain, PROGRAMS.len() * TABLES.len());
        for options in ["-b", "-q 16", "-l 16", "-e", "-I 64", "--use-srq", "-D 1"] {
            let count = cases.iter().filter(|case| case.variation.options == options).count();
            assert_eq!(count, PROGRAMS.len() * TABLES.len(), "{options}");
        }
        for mtu in [256, 512, 1024, 2048, 4096] {
            let options = format!("-m {mtu}");
            assert!(cases.iter().any(|case| case.variation.options == options), "{options}");
        }
    }

    #[test]
    fn datagrams_are_no_larger_than_the_mtu() {
        for case in Case::all().iter().filter(|case| case.transport == Transport::Ud) {
            let mtu = case.variation.mtu.unwrap_or(4096);
            assert!(case.sizes().iter().all(|&size| size <= u64::from(mtu)), "{case}");
        }
    }
}
