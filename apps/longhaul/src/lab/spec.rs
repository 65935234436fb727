//! What a lab consists of.

use crate::quantity::{Distance, Size, memory, probability};
use longhaul_units::BitRate;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::str::FromStr;

/// Everything that defines a lab; written to its directory and echoed into results.
#[derive(Clone, Debug, clap::Args, Serialize, Deserialize)]
pub struct Spec {
    /// Name, where several labs run side by side
    #[arg(long, default_value_t)]
    pub name: LabName,
    /// Length of the fibre between the sites, at 5 µs per km one way
    #[arg(long, default_value = "0km")]
    pub distance: Distance,
    /// Rate of the hosts' ports and of the fibre
    #[arg(long, default_value = "10G")]
    #[serde(with = "rate_as_bps")]
    pub rate: BitRate,
    /// Put accelerators into the wire: at both sites, or at one
    #[arg(long, value_enum, num_args = 0..=1, default_value = "none", default_missing_value = "both")]
    pub accelerate: Accelerate,
    /// Probability that the fibre loses a frame
    #[arg(long, default_value = "0", value_parser = probability)]
    pub loss: f64,
    /// Queue in front of the fibre, each way; what does not fit is dropped
    #[arg(long, default_value = "16M")]
    pub queue: Size,
    /// Memory for frames: this much for the fibre, and as much again for each accelerator's store
    #[arg(long, default_value = "4G", value_parser = memory)]
    pub memory: Size,
    /// Seed of everything random: losses, PSNs, ids
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Record the first frames at host a's port into this file
    #[arg(long)]
    pub pcap: Option<PathBuf>,
    /// How many frames to record
    #[arg(long, default_value_t = 1000)]
    pub pcap_frames: u64,
}

impl Spec {
    /// A line for people.
    pub fn summary(&self) -> String {
        let accelerators = match self.accelerate {
            Accelerate::None => "no accelerators".to_string(),
            Accelerate::Both => "accelerators at both sites".to_string(),
            one => format!("an accelerator at site {one}"),
        };
        let loss = if self.loss > 0.0 { format!(", loss {}", self.loss) } else { String::new() };
        format!("{} of fibre at {}{loss}, {accelerators}", self.distance, self.rate)
    }
}

mod rate_as_bps {
    use super::BitRate;
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub fn serialize<S: Serializer>(rate: &BitRate, s: S) -> Result<S::Ok, S::Error> {
        s.serialize_u64(rate.as_bps())
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<BitRate, D::Error> {
        BitRate::from_bps(u64::deserialize(d)?).ok_or_else(|| D::Error::custom("a rate of zero"))
    }
}

/// Which sites have an accelerator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Accelerate {
    /// Neither.
    None,
    /// Both.
    Both,
    /// Host a's alone.
    A,
    /// Host b's alone.
    B,
}

impl Accelerate {
    /// True when host a's site has one.
    pub fn at_a(self) -> bool {
        matches!(self, Accelerate::Both | Accelerate::A)
    }

    /// True when host b's site has one.
    pub fn at_b(self) -> bool {
        matches!(self, Accelerate::Both | Accelerate::B)
    }
}

impl fmt::Display for Accelerate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Accelerate::None => "none",
            Accelerate::Both => "both",
            Accelerate::A => "a",
            Accelerate::B => "b",
        })
    }
}

/// A host of the lab.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum HostName {
    /// The host at the first site, 10.77.0.1.
    A,
    /// The host at the second site, 10.77.0.2.
    B,
}

impl HostName {
    /// Both.
    pub const ALL: [HostName; 2] = [HostName::A, HostName::B];

    /// Its address.
    pub const fn ip(self) -> Ipv4Addr {
        Ipv4Addr::new(10, 77, 0, self as u8 + 1)
    }
}

impl fmt::Display for HostName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            HostName::A => "a",
            HostName::B => "b",
        })
    }
}

impl FromStr for HostName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "a" | "A" => Ok(HostName::A),
            "b" | "B" => Ok(HostName::B),
            _ => Err(format!(
                "no host '{text}' in the lab: its hosts are a ({}) and b ({})",
                HostName::A.ip(),
                HostName::B.ip()
            )),
        }
    }
}

/// Name of a lab: it becomes a directory name, and socket paths are short.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct LabName(String);

impl LabName {
    /// As text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Default for LabName {
    fn default() -> Self {
        LabName("default".to_string())
    }
}

impl fmt::Display for LabName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for LabName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let fits = !text.is_empty()
            && text.len() <= 32
            && text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_');
        if fits {
            Ok(LabName(text.to_string()))
        } else {
            Err("a lab's name is 1 to 32 letters, digits, - or _".to_string())
        }
    }
}
