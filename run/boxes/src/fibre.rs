//! What a fibre is like, for whoever emulates one or stands in front of one.

use crate::quantity::{NoProbability, Size, probability};
use longhaul_link::{
    Bursts, Change, Cut, Impairments, Link, LinkConfig, LinkError, RedConfig, Rule,
};
use longhaul_units::{BitRate, Duration as Span, Instant, QuantityError};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;
use thiserror::Error;

/// A fibre with the queue in front of it, both directions alike.
#[derive(Clone, Debug, PartialEq)]
pub struct Fibre {
    /// One way.
    pub delay: Span,
    /// Both ways.
    pub rate: BitRate,
    /// Probability that a frame is lost.
    pub loss: f64,
    /// How losses come together.
    pub bursts: Option<Bursts>,
    /// When it is cut.
    pub cut: Option<Cut>,
    /// What else befalls frames.
    pub impairments: Impairments,
    /// What is done to some frames alone.
    pub rules: Vec<Rule>,
    /// What changes while it runs.
    pub changes: Vec<Change>,
    /// In front of it, each way.
    pub queue: Size,
    /// What that does before it drops.
    pub ecn: Ecn,
    /// For all frames on the way.
    pub memory: Size,
    /// Of the losses and the marks.
    pub seed: u64,
}

impl Fibre {
    /// Its rate unless told otherwise.
    pub const RATE: BitRate = BitRate::from_gbps(10).unwrap();
    /// Its queue unless told otherwise.
    pub const QUEUE: Size = Size::from_bytes(16 << 20);
    /// Its memory unless told otherwise.
    pub const MEMORY: Size = Size::from_bytes(4 << 30);

    /// The emulated fibre.
    ///
    /// # Errors
    /// When the memory does not hold what can be under way: with the longest delay that it is
    /// enough for.
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

    /// What it is like, and the longest delay that its memory is enough for.
    pub fn summary(&self) -> String {
        let config = self.config();
        let held = |delay: Option<Span>| {
            delay.map_or_else(String::new, |delay| format!("{:.1} ms", delay.as_secs_f64() * 1e3))
        };
        format!(
            "{} one way at {}; {} of memory are lossless up to a delay of {} whatever the frames, \
             of {} with payloads of 1 KiB and of {} with 4 KiB",
            self.delay,
            self.rate,
            self.memory,
            held(config.lossless_delay_max(config.memory_bytes_max)),
            held(config.lossless_delay_at(config.memory_bytes_max, 1024)),
            held(config.lossless_delay_at(config.memory_bytes_max, 4096)),
        )
    }
}

/// Bursts of losses, if their mean length is given, in which every frame is lost unless a part is.
pub fn bursts(frames: Option<f64>, loss: Option<f64>) -> Option<Bursts> {
    frames.map(|frames| Bursts { frames, loss: loss.unwrap_or(1.0) })
}

/// Cuts of this length, if one is given, from one to the next; the first after as long.
pub fn cuts(lasts: Option<Span>, every: Option<Span>) -> Option<Cut> {
    let every = every.unwrap_or(Span::from_ms(10_000));
    lasts.map(|lasts| Cut { at: Instant::ZERO + every, lasts, every: Some(every) })
}

/// What the queues do before they drop.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Ecn {
    /// Nothing.
    Off,
    /// They mark by thresholds that go with their length.
    OfQueue,
    /// They mark by these thresholds.
    Of {
        /// Below it, never.
        kmin: Size,
        /// Above it, always.
        kmax: Size,
        /// The probability at `kmax`.
        pmax: f64,
    },
}

impl Ecn {
    const PMAX: f64 = 0.1;

    /// When a queue of this length marks; `None`: never.
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

/// Why a text does not say when a queue marks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum EcnError {
    /// It does not have two or three parts.
    #[error("not thresholds: write Kmin:Kmax or Kmin:Kmax:Pmax, as in 1M:4M:0.1")]
    NoThresholds,
    /// A threshold is no size.
    #[error(transparent)]
    Size(#[from] QuantityError),
    /// Pmax is no probability.
    #[error(transparent)]
    Probability(#[from] NoProbability),
    /// The thresholds are in the wrong order.
    #[error("Kmin, {kmin}, is above Kmax, {kmax}")]
    Order {
        /// The lower one.
        kmin: Size,
        /// The upper one.
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

/// Rules or changes as the texts that they are read from.
pub mod as_texts {
    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serializer};
    use std::fmt::Display;
    use std::str::FromStr;

    /// Writes each as its text.
    pub fn serialize<T: Display, S: Serializer>(all: &[T], to: S) -> Result<S::Ok, S::Error> {
        to.collect_seq(all.iter().map(T::to_string))
    }

    /// Reads each from its text.
    pub fn deserialize<'de, T, D>(from: D) -> Result<Vec<T>, D::Error>
    where
        T: FromStr<Err: Display>,
        D: Deserializer<'de>,
    {
        let texts = Vec::<String>::deserialize(from)?;
        texts.iter().map(|text| text.parse().map_err(D::Error::custom)).collect()
    }
}
