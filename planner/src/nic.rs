//! Profiles of a NIC and its driver: data files in labs/nics, or a user's own.

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// A NIC's limits, and the time costs of the NIC and its host.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NicProfile {
    /// Name in results.
    pub name: String,
    /// One-line description.
    pub about: String,
    /// Rate of its port in bits on the wire per second: 1000 to 10^15.
    pub rate_bps: u64,
    /// Maximum unacknowledged WQEs of one QP (ConnectX: 2^LOG_MAX_OUTSTANDING_WQE), at least 1.
    pub outstanding_wqes: u32,
    /// Maximum outstanding READs and atomics of one QP: 1 to 255.
    pub outstanding_reads: u32,
    /// Maximum unacknowledged packets of one QP: 1 to 2^23.
    pub outstanding_psns: u32,
    /// Packets between acknowledgement requests of the requester, which also requests one at each
    /// message's end: 1 to 2^23, capped at `outstanding_psns`.
    pub ack_request_every: u32,
    /// Packets between acknowledgements that the responder sends unrequested: 1 to 2^23.
    pub ack_every: u32,
    /// Minimum time between the starts of two messages at the port.
    pub message_ns: u64,
    /// Minimum time between two packets at the port.
    pub packet_ns: u64,
    /// Time from the program's call until the NIC has the work request.
    pub doorbell_ns: u64,
    /// Time from a packet's last bit until the NIC has processed it.
    pub responder_ns: u64,
    /// Time from then until the program can see the completion.
    pub completion_ns: u64,
    /// The program's time to post one work request.
    pub post_ns: u64,
    /// The program's time to poll one completion.
    pub poll_ns: u64,
    /// The requester's time to ring a doorbell, once per posted list. Predictions ignore this and
    /// the other costs of events, lists and shared receive queues.
    pub list_ns: u64,
    /// Processor time of a completion event: the call that returns it, its acknowledgement, and
    /// the request for the next.
    pub event_ns: u64,
    /// Time from an event until the thread that waits for it runs, which is not processor time.
    pub wakeup_ns: u64,
    /// Additional processor time of an event whose thread runs after another thread of its program.
    pub switch_ns: u64,
    /// The program's time, per QP of a shared receive queue and per message, to find the message's
    /// QP, in picoseconds.
    pub search_ps: u64,
    /// Minimum time between two messages that take a receive of a shared receive queue.
    pub srq_message_ns: u64,
    /// Local ACK timeout: 4.096 µs x 2^`timeout_code`, 1 to 31; 0: none.
    pub timeout_code: u8,
    /// Maximum retries without progress, 0 to 7.
    pub retry_count: u8,
    /// The timer starts at `adaptive_first_ns` and doubles with each retry, up to `timeout_code`
    /// (ConnectX, ROCE_ACCL).
    pub adaptive_retransmission: bool,
    /// See `adaptive_retransmission`.
    pub adaptive_first_ns: u64,
}

/// Why a profile cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum NicError {
    /// No built-in profile has that name.
    #[error("no NIC profile is called '{name}': there are {known}, or give a TOML file")]
    Unknown {
        /// The requested name.
        name: String,
        /// The built-in names.
        known: String,
    },
    /// An unknown key.
    #[error(
        "unknown key '{key}'{}",
        nearest.map(|n| format!(", did you mean '{n}'?")).unwrap_or_default()
    )]
    Key {
        /// As written.
        key: String,
        /// The most similar valid key.
        nearest: Option<&'static str>,
    },
    /// A value out of range.
    #[error("{key} = {value} is out of range: {range}")]
    Value {
        /// Its key.
        key: &'static str,
        /// As written.
        value: u64,
        /// Valid range.
        range: &'static str,
    },
    /// Not TOML, a value of the wrong type, or a key missing.
    #[error("{0}")]
    Syntax(String),
}

/// Keys of a profile.
const KEYS: [&str; 25] = [
    "name",
    "about",
    "rate_bps",
    "outstanding_wqes",
    "outstanding_reads",
    "outstanding_psns",
    "ack_request_every",
    "ack_every",
    "message_ns",
    "packet_ns",
    "doorbell_ns",
    "responder_ns",
    "completion_ns",
    "post_ns",
    "poll_ns",
    "list_ns",
    "event_ns",
    "wakeup_ns",
    "switch_ns",
    "search_ps",
    "srq_message_ns",
    "timeout_code",
    "retry_count",
    "adaptive_retransmission",
    "adaptive_first_ns",
];

/// One minute, longer than any operation of a NIC.
const NS_MAX: u64 = 60_000_000_000;

impl NicProfile {
    /// Built-in profiles: name and file.
    const FILES: [(&str, &str); 7] = [
        ("connectx6", include_str!("../../labs/nics/connectx6.toml")),
        ("connectx6-adaptive", include_str!("../../labs/nics/connectx6-adaptive.toml")),
        ("connectx6-apn", include_str!("../../labs/nics/connectx6-apn.toml")),
        ("rxe", include_str!("../../labs/nics/rxe.toml")),
        ("longhaul", include_str!("../../labs/nics/longhaul.toml")),
        ("ideal", include_str!("../../labs/nics/ideal.toml")),
        ("das6", include_str!("../../labs/nics/das6.toml")),
    ];

    /// Names of the built-in profiles.
    pub fn names() -> impl Iterator<Item = &'static str> {
        Self::FILES.into_iter().map(|(name, _)| name)
    }

    /// Returns a built-in profile.
    ///
    /// # Errors
    ///
    /// [`NicError::Unknown`], with the known names.
    pub fn named(name: &str) -> Result<Self, NicError> {
        let unknown = || NicError::Unknown {
            name: name.to_owned(),
            known: Self::names().collect::<Vec<_>>().join(", "),
        };
        let (_, text) =
            Self::FILES.into_iter().find(|(known, _)| *known == name).ok_or_else(unknown)?;
        Self::read(text)
    }

    /// The profile without limits and costs.
    pub fn ideal() -> Self {
        Self::named("ideal").unwrap_or_else(|e| unreachable!("embedded profile: {e}"))
    }

    /// Parses a TOML file. Every key is required, because a missing limit would read as no limit.
    ///
    /// # Errors
    ///
    /// See [`NicError`].
    pub fn read(text: &str) -> Result<Self, NicError> {
        let syntax = |e: toml::de::Error| {
            let line =
                e.span().map(|span| text[..span.start.min(text.len())].matches('\n').count() + 1);
            let place = line.map(|line| format!("line {line}: ")).unwrap_or_default();
            NicError::Syntax(format!(
                "{place}{}",
                e.message().lines().collect::<Vec<_>>().join(", ")
            ))
        };
        let table: toml::Table = toml::from_str(text).map_err(syntax)?;
        if let Some(key) = table.keys().find(|key| !KEYS.contains(&key.as_str())) {
            return Err(NicError::Key { key: key.clone(), nearest: nearest(key) });
        }
        let profile: NicProfile = toml::from_str(text).map_err(syntax)?;
        profile.check()?;
        Ok(profile)
    }

    /// Validates every value.
    ///
    /// # Errors
    ///
    /// [`NicError::Value`] names the first invalid one.
    pub fn check(&self) -> Result<(), NicError> {
        let times = "0 to 60 s";
        let rules = [
            ("rate_bps", self.rate_bps, 1_000, 1_000_000_000_000_000, "1 kbit/s to 1 Pbit/s"),
            ("outstanding_wqes", self.outstanding_wqes.into(), 1, u32::MAX.into(), "at least 1"),
            ("outstanding_reads", self.outstanding_reads.into(), 1, 255, "1 to 255"),
            ("outstanding_psns", self.outstanding_psns.into(), 1, 1 << 23, "1 to 8388608"),
            ("ack_request_every", self.ack_request_every.into(), 1, 1 << 23, "1 to 8388608"),
            ("ack_every", self.ack_every.into(), 1, 1 << 23, "1 to 8388608"),
            ("message_ns", self.message_ns, 0, NS_MAX, times),
            ("packet_ns", self.packet_ns, 0, NS_MAX, times),
            ("doorbell_ns", self.doorbell_ns, 0, NS_MAX, times),
            ("responder_ns", self.responder_ns, 0, NS_MAX, times),
            ("completion_ns", self.completion_ns, 0, NS_MAX, times),
            ("post_ns", self.post_ns, 0, NS_MAX, times),
            ("poll_ns", self.poll_ns, 0, NS_MAX, times),
            ("list_ns", self.list_ns, 0, NS_MAX, times),
            ("event_ns", self.event_ns, 0, NS_MAX, times),
            ("wakeup_ns", self.wakeup_ns, 0, NS_MAX, times),
            ("switch_ns", self.switch_ns, 0, NS_MAX, times),
            ("search_ps", self.search_ps, 0, NS_MAX, times),
            ("srq_message_ns", self.srq_message_ns, 0, NS_MAX, times),
            ("timeout_code", self.timeout_code.into(), 0, 31, "0 to 31"),
            ("retry_count", self.retry_count.into(), 0, 7, "0 to 7"),
            ("adaptive_first_ns", self.adaptive_first_ns, 1, NS_MAX, "1 ns to 60 s"),
        ];
        match rules.into_iter().find(|(_, value, least, most, _)| !(least..=most).contains(&value))
        {
            Some((key, value, _, _, range)) => Err(NicError::Value { key, value, range }),
            None => Ok(()),
        }
    }

    /// Time from the last bit of a message until its acknowledgement has been processed, beyond the
    /// RTT.
    pub(crate) fn turn_ns(&self) -> f64 {
        (2 * self.responder_ns) as f64
    }

    /// [`NicProfile::turn_ns`], plus the time until the NIC has the program's next message.
    pub(crate) fn program_turn_ns(&self) -> f64 {
        self.turn_ns()
            + (self.completion_ns + self.poll_ns + self.post_ns + self.doorbell_ns) as f64
    }

    /// The NIC's limit of outstanding messages of one QP, for an operation.
    pub(crate) fn outstanding(&self, is_answered: bool) -> u64 {
        let wqes = u64::from(self.outstanding_wqes);
        if is_answered { wqes.min(self.outstanding_reads.into()) } else { wqes }
    }

    /// `true` for a ConnectX, which Mellanox's tools configure.
    pub(crate) fn is_connectx(&self) -> bool {
        self.name.to_ascii_lowercase().contains("connectx")
            || self.name.to_ascii_lowercase().contains("bluefield")
    }
}

/// Returns the valid key most similar to `key`, if at most a third of it differs.
fn nearest(key: &str) -> Option<&'static str> {
    let distances = KEYS.into_iter().map(|known| (strsim::damerau_levenshtein(key, known), known));
    let (distance, found) = distances.min()?;
    (distance <= key.chars().count().div_ceil(3)).then_some(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_embedded_profile_is_read_and_goes_by_its_name() {
        for name in NicProfile::names() {
            assert_eq!(NicProfile::named(name).unwrap().name, name);
        }
    }

    #[test]
    fn every_field_is_a_known_key() {
        let table = toml::Table::try_from(NicProfile::ideal()).unwrap();
        let mut keys: Vec<_> = table.keys().map(String::as_str).collect();
        let mut known = KEYS.to_vec();
        keys.sort_unstable();
        known.sort_unstable();
        assert_eq!(keys, known);
    }

    #[test]
    fn an_unknown_name_lists_those_that_there_are() {
        let error = NicProfile::named("connectx9").unwrap_err().to_string();
        assert!(
            error.contains("'connectx9'")
                && error.contains("connectx6, connectx6-adaptive, connectx6-apn, rxe"),
            "{error}"
        );
    }

    #[test]
    fn an_unknown_key_is_named_with_the_nearest_valid_one() {
        let text = include_str!("../../labs/nics/rxe.toml");
        let refuse = |text: &str| NicProfile::read(text).unwrap_err().to_string();
        let error = refuse(&text.replace("outstanding_psns", "outstanding_psn"));
        assert_eq!(error, "unknown key 'outstanding_psn', did you mean 'outstanding_psns'?");
        assert_eq!(refuse(&format!("{text}\nzebra = 1")), "unknown key 'zebra'");
        let error = refuse(&text.replace("ack_request_every = 66", ""));
        assert!(error.contains("missing field `ack_request_every`"), "{error}");
        assert!(refuse("name = ").starts_with("line 1: "));
        assert!(
            refuse(&text.replace("ack_request_every = 66", "ack_request_every = -1"))
                .contains("line ")
        );
    }

    #[test]
    fn values_out_of_range_are_named_with_their_range() {
        let text = include_str!("../../labs/nics/rxe.toml");
        for (from, to, part) in [
            ("outstanding_psns = 129", "outstanding_psns = 0", "outstanding_psns = 0"),
            ("retry_count = 7", "retry_count = 8", "0 to 7"),
            ("rate_bps = 100_000_000_000", "rate_bps = 0", "1 kbit/s to"),
            ("poll_ns = 100", "poll_ns = 60_000_000_001", "0 to 60 s"),
        ] {
            assert_ne!(text.replace(from, to), text, "{from}");
            let error = NicProfile::read(&text.replace(from, to)).unwrap_err().to_string();
            assert!(error.contains(part), "{error}");
        }
    }
}
