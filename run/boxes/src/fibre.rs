//! The properties of a fibre, for programs that emulate one or plan for one.

use crate::quantity::{Size, probability};
use longhaul_link::{
    Bursts, Change, Cut, Impairments, Link, LinkConfig, LinkError, RedConfig, Rule,
};
use longhaul_units::{BitRate, Duration as Span, Instant, QuantityError};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;
use thiserror::Error;

/// A fibre with the queues before it; both directions are alike.
#[derive(Clone, Debug, PartialEq)]
pub struct Fibre {
    /// One-way delay.
    pub delay: Span,
    /// Rate per direction.
    pub rate: BitRate,
    /// Probability that a frame is lost.
    pub loss: f64,
    /// How losses cluster.
    pub bursts: Option<Bursts>,
    /// Periodic cuts.
    pub cut: Option<Cut>,
    /// Other impairments.
    pub impairments: Impairments,
    /// Actions on selected frames.
    pub rules: Vec<Rule>,
    /// Changes over time.
    pub changes: Vec<Change>,
    /// Queue per direction.
    pub queue: Size,
    /// Marking by the queue.
    pub ecn: Ecn,
    /// Memory for all frames in flight.
    pub memory: Size,
    /// Seed of losses and marks.
    pub seed: u64,
}

impl Fibre {
    /// Default rate.
    pub const RATE: BitRate = BitRate::from_gbps(10).unwrap();
    /// Default queue.
    pub const QUEUE: Size = Size::from_bytes(16 << 20);
    /// Default memory.
    pub const MEMORY: Size = Size::from_bytes(4 << 30);

    /// The emulated fibre.
    ///
    /// # Errors
    /// If the memory cannot hold the frames that can be in flight; the error names the longest
    /// delay that it suffices for.
    pub fn link(&self) -> Result<Link, LinkError> {
        Link::new(self.config())
    }

    fn config(&self) -> LinkConfig {
        LinkConfig {
            delay: self.delay,
            rate: Some(self.rate),
            queue_bytes: self.queue.bytes(),
            ecn: self.ecn.of_queue(self.queue),
            loss: self.loss,
            bursts: self.bursts,
            cut: self.cut,
            impairments: self.impairments,
            rules: self.rules.clone(),
            changes: self.changes.clone(),
            seed: self.seed,
            memory_bytes_max: self.memory.bytes(),
        }
    }

    /// One line: the fibre's properties, and the longest delay that its memory suffices for.
    pub fn summary(&self) -> String {
        let config = self.config();
        let held = |delay: Option<Span>| {
            delay.map_or_else(String::new, |delay| delay.rounded_down().to_string())
        };
        format!(
            "{} one way at {}; {} of memory suffices for a delay of {} with frames of any size, of \
             {} with payloads of 1 KiB and of {} with 4 KiB",
            self.delay,
            self.rate,
            self.memory,
            held(config.lossless_delay_max(config.memory_bytes_max)),
            held(config.lossless_delay_at(config.memory_bytes_max, 1024)),
            held(config.lossless_delay_at(config.memory_bytes_max, 4096)),
        )
    }
}

/// Loss bursts of this mean length, if given. Every frame in a burst is lost, unless `loss` is
/// given.
pub fn bursts(frames: Option<f64>, loss: Option<f64>) -> Option<Bursts> {
    frames.map(|frames| Bursts { frames, loss: loss.unwrap_or(1.0) })
}

/// Cuts of this length, if given, at this interval; the first one after one interval.
pub fn cuts(lasts: Option<Span>, every: Option<Span>) -> Option<Cut> {
    let every = every.unwrap_or(Span::from_ms(10_000));
    lasts.map(|lasts| Cut { at: Instant::ZERO + every, lasts, every: Some(every) })
}

/// ECN marking by the queues.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Ecn {
    /// No marking.
    Off,
    /// Thresholds derived from the queue's length.
    OfQueue,
    /// Explicit thresholds.
    Of {
        /// Packets are never marked below it.
        kmin: Size,
        /// Packets are always marked above it.
        kmax: Size,
        /// Probability of a mark at `kmax`.
        pmax: f64,
    },
}

impl Ecn {
    const PMAX: f64 = 0.1;

    /// The marking of a queue of this length; `None`: none.
    pub fn of_queue(self, queue: Size) -> Option<RedConfig> {
        match self {
            Ecn::Off => None,
            Ecn::OfQueue => Some(RedConfig::for_queue(queue.bytes())),
            Ecn::Of { kmin, kmax, pmax } => {
                Some(RedConfig { kmin_bytes: kmin.bytes(), kmax_bytes: kmax.bytes(), pmax })
            }
        }
    }
}

impl fmt::Display for Ecn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Ecn::Off => f.write_str("off"),
            Ecn::OfQueue => f.write_str("on"),
            Ecn::Of { kmin, kmax, pmax } => write!(f, "{}:{}:{pmax}", kmin.bytes(), kmax.bytes()),
        }
    }
}

/// Why a text does not describe marking.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum EcnError {
    /// It does not have two or three parts.
    #[error("not thresholds: write Kmin:Kmax or Kmin:Kmax:Pmax, as in 1M:4M:0.1")]
    NoThresholds,
    /// A threshold is not a size, or Pmax not a probability.
    #[error(transparent)]
    Quantity(#[from] QuantityError),
    /// The thresholds are in the wrong order.
    #[error("Kmin, {kmin}, is above Kmax, {kmax}")]
    Order {
        /// Lower threshold.
        kmin: Size,
        /// Upper threshold.
        kmax: Size,
    },
}

impl FromStr for Ecn {
    type Err = EcnError;

    fn from_str(text: &str) -> Result<Self, EcnError> {
        match text {
            "off" => return Ok(Ecn::Off),
            "on" => return Ok(Ecn::OfQueue),
            _ => {}
        }
        let parts: Vec<&str> = text.split(':').collect();
        let (kmin, kmax, pmax) = match parts[..] {
            [kmin, kmax] => (kmin, kmax, Ecn::PMAX),
            [kmin, kmax, pmax] => (kmin, kmax, probability(pmax)?),
            _ => return Err(EcnError::NoThresholds),
        };
        let (kmin, kmax) = (kmin.parse::<Size>()?, kmax.parse::<Size>()?);
        if kmin > kmax {
            return Err(EcnError::Order { kmin, kmax });
        }
        Ok(Ecn::Of { kmin, kmax, pmax })
    }
}

impl TryFrom<String> for Ecn {
    type Error = EcnError;

    fn try_from(text: String) -> Result<Self, EcnError> {
        text.parse()
    }
}

impl From<Ecn> for String {
    fn from(ecn: Ecn) -> String {
        ecn.to_string()
    }
}

/// Serialises rules and changes as the texts that they are parsed from.
pub mod as_texts {
    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serializer};
    use std::fmt::Display;
    use std::str::FromStr;

    /// Serialises each as text.
    pub fn serialize<T: Display, S: Serializer>(all: &[T], to: S) -> Result<S::Ok, S::Error> {
        to.collect_seq(all.iter().map(T::to_string))
    }

    /// Parses each from text.
    pub fn deserialize<'de, T, D>(from: D) -> Result<Vec<T>, D::Error>
    where
        T: FromStr<Err: Display>,
        D: Deserializer<'de>,
    {
        let texts = Vec::<String>::deserialize(from)?;
        texts.iter().map(|text| text.parse().map_err(D::Error::custom)).collect()
    }
}
