//! The spec of a lab.

use crate::node::Sides;
use longhaul_boxes::fibre::{Ecn, Fibre, as_texts, bursts, cuts};
use longhaul_boxes::figures::{count, fraction};
use longhaul_boxes::number::within;
use longhaul_boxes::quantity::{Distance, Size, memory, probability};
use longhaul_boxes::settings::WanRate;
use longhaul_link::{Change, Impairments, RedConfig, Rule};
use longhaul_units::{BitRate, Duration as Span, ParseBitRateError};
use longhaul_wire::MacAddr;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::PathBuf;
use std::str::FromStr;
use thiserror::Error;

/// The complete spec of a lab; written to its directory and echoed in results.
#[derive(Clone, Debug, clap::Args, Serialize, Deserialize)]
pub struct Spec {
    /// Name, to run several labs side by side [default: default]
    #[arg(long, default_value_t, hide_default_value = true)]
    pub name: LabName,
    /// Hosts, 2 to 26: a, c, e ... at one end of the fibre, b, d, f ... at the other. With more
    /// than two, each end has a switch [default: 2]
    #[arg(
        long,
        value_name = "N",
        default_value_t = 2,
        value_parser = within::<u8>(2..=HOSTS_MAX as u64),
        hide_default_value = true
    )]
    pub hosts: u8,
    /// Length of the fibre between the sites, at 5 µs per km one way [default: 0km]
    #[arg(long, default_value = "0km", hide_default_value = true)]
    pub distance: Distance,
    /// Rate of the hosts' ports, of the switches' and of the fibre [default: 10G]
    #[arg(long, default_value = "10G", value_parser = rate, hide_default_value = true)]
    #[serde(with = "rate_as_bps")]
    pub rate: BitRate,
    /// Network of the hosts. kernel: each has its own, with an interface lh0 of this machine's
    /// kernel on the fibre, so that ping, ssh and iperf3 cross it. none: programs share this
    /// machine's network, and only their RDMA crosses the fibre [default: kernel]
    #[arg(
        long,
        value_enum,
        value_name = "kernel|none",
        hide_possible_values = true,
        hide_default_value = true,
        default_value = "kernel"
    )]
    #[serde(default)]
    pub network: NetworkChoice,
    /// Join hosts a and b by shared memory alone, without fibre, rate and a thread in between, for
    /// one program on each; they share this machine's network
    #[arg(
        long,
        conflicts_with_all = [
            "hosts", "distance", "rate", "network", "accelerate", "wan_rate", "loss", "cut_for",
            "rule", "at", "queue", "ecn", "memory", "pcap",
        ]
    )]
    #[serde(default)]
    pub back_to_back: bool,
    /// Put accelerators into the wire: at both sites, or at one; or whole boxes, whose WAN
    /// transport repairs the fibre's losses; or those with read-ahead of NVMe-oF and NFS in
    /// addition. Without a value: both [default: none]
    #[arg(
        long,
        value_enum,
        value_name = "none|both|transport|read-ahead|a|b",
        hide_possible_values = true,
        hide_default_value = true,
        num_args = 0..=1,
        default_value = "none",
        default_missing_value = "both"
    )]
    pub accelerate: Accelerate,
    /// Rate of the transport: 'adaptive' follows the fibre's free capacity and shares it with other
    /// traffic, such as the hosts' TCP; 'port' sends as fast as frames come; or a fixed rate
    /// [default: the fibre's]
    #[arg(long, value_name = "adaptive|port|RATE")]
    #[serde(default)]
    pub wan_rate: Option<WanRate>,
    /// Probability that the fibre loses a frame [default: 0]
    #[arg(
        long,
        value_name = "PROBABILITY",
        default_value = "0",
        value_parser = probability,
        hide_default_value = true
    )]
    pub loss: f64,
    /// Mean length of loss bursts, in frames (Gilbert-Elliott model); --loss is the overall mean
    #[arg(long, value_name = "FRAMES", requires = "loss")]
    pub loss_burst: Option<f64>,
    /// Duration of periodic cuts; frames sent during a cut are lost
    #[arg(long, value_name = "TIME")]
    #[serde(with = "time_as_ps", default)]
    pub cut_for: Option<Span>,
    /// Time from the start of one cut to the next [default: 10s]
    #[arg(long, value_name = "TIME", requires = "cut_for")]
    #[serde(with = "time_as_ps", default)]
    pub cut_every: Option<Span>,
    /// Apply an action to selected frames on the fibre: 'WHAT [CONDITION ...]: ACTION [HOW OFTEN]',
    /// as in 'read-response from a: lose 1%'. May be repeated; docs/emulator.md has the syntax
    #[arg(long, value_name = "RULE")]
    #[serde(with = "as_texts", default)]
    pub rule: Vec<Rule>,
    /// Change the fibre at a time after the start of the lab: '10s cut 50ms', '5s-20s loss 1e-3',
    /// '30s rate 1G', '60s delay 20ms'. May be repeated
    #[arg(long, value_name = "CHANGE")]
    #[serde(with = "as_texts", default)]
    pub at: Vec<Change>,
    /// Queue before the fibre, per direction, and of each switch port; frames beyond it are dropped
    /// [default: 16M]
    #[arg(long, value_name = "SIZE", default_value = "16M", hide_default_value = true)]
    pub queue: Size,
    /// Mark ECN-capable packets by the length of these queues: never up to Kmin, always above Kmax,
    /// in between with a probability that rises to Pmax (0.1 unless given). Without a value, Kmin
    /// is 1/16 of the queue and Kmax 1/4 [default: off]
    #[arg(
        long,
        hide_default_value = true,
        num_args = 0..=1,
        default_value = "off",
        default_missing_value = "on",
        value_name = "KMIN:KMAX[:PMAX]"
    )]
    pub ecn: Ecn,
    /// Memory for frames: this much for the fibre, and the same for each accelerator's store
    /// [default: 4G]
    #[arg(
        long,
        value_name = "SIZE",
        default_value = "4G",
        value_parser = memory,
        hide_default_value = true
    )]
    pub memory: Size,
    /// Seed of all random values: losses, PSNs, ids [default: 1]
    #[arg(long, value_name = "N", default_value_t = 1, hide_default_value = true)]
    pub seed: u64,
    /// Give the RDMA devices the hosts' IPv6 addresses, fd77::a4d:1 and so on, instead of the IPv4
    /// ones
    #[arg(long)]
    #[serde(default)]
    pub ipv6: bool,
    /// Record the first frames of host a's programs into this file
    #[arg(long, value_name = "FILE")]
    pub pcap: Option<PathBuf>,
    /// Maximum frames to record [default: 1000]
    #[arg(
        long,
        value_name = "N",
        requires = "pcap",
        default_value_t = 1000,
        hide_default_value = true
    )]
    pub pcap_frames: u64,
}

impl Spec {
    /// Two hosts with networks of their own on a fibre; the rest is as by default.
    pub fn of_two(name: LabName, distance: Distance, rate: BitRate) -> Self {
        Spec {
            name,
            hosts: 2,
            distance,
            rate,
            network: NetworkChoice::Kernel,
            back_to_back: false,
            ipv6: false,
            accelerate: Accelerate::None,
            wan_rate: None,
            loss: 0.0,
            loss_burst: None,
            cut_for: None,
            cut_every: None,
            rule: Vec::new(),
            at: Vec::new(),
            queue: Size::from_bytes(16 << 20),
            ecn: Ecn::Off,
            memory: Size::from_bytes(4 << 30),
            seed: 1,
            pcap: None,
            pcap_frames: 1000,
        }
    }

    /// A one-line description.
    pub fn summary(&self) -> String {
        if self.back_to_back {
            return "two hosts back to back over shared memory".to_owned();
        }
        let accelerators = match self.accelerate {
            Accelerate::None => "no accelerators".to_string(),
            Accelerate::Both => "accelerators at both sites".to_string(),
            Accelerate::Transport | Accelerate::ReadAhead => {
                let rate = self.wan_rate.map(|rate| format!(" ({rate})")).unwrap_or_default();
                let read_ahead = match self.accelerate {
                    Accelerate::ReadAhead => ", with read-ahead",
                    _ => "",
                };
                format!("accelerators at both sites and a transport{rate} between them{read_ahead}")
            }
            Accelerate::A | Accelerate::B => format!("an accelerator at site {}", self.accelerate),
        };
        let hosts = if self.hosts == 2 { String::new() } else { format!("{} hosts, ", self.hosts) };
        let ecn = match self.ecn() {
            Some(red) => format!(
                ", ECN from {} to {}",
                Size::from_bytes(red.kmin_bytes),
                Size::from_bytes(red.kmax_bytes)
            ),
            None => String::new(),
        };
        let bursts =
            self.loss_burst.map(|frames| format!(" in bursts of {frames}")).unwrap_or_default();
        let loss = if self.loss > 0.0 {
            format!(", loss {}{bursts}", fraction(self.loss))
        } else {
            String::new()
        };
        let cuts =
            self.cut_for.map(|lasts| format!(", cut for {lasts} at a time")).unwrap_or_default();
        let given = |n: usize, noun| match n {
            0 => String::new(),
            n => format!(", {}", count(n as u64, noun)),
        };
        let rules = given(self.rule.len(), "rule") + &given(self.at.len(), "change");
        format!(
            "{hosts}{} of fibre at {}{loss}{cuts}{rules}{ecn}, {accelerators}",
            self.distance, self.rate
        )
    }

    /// Addresses of the device of `host`; its name stands for the first.
    pub fn device_addresses(&self, host: HostName) -> [IpAddr; 3] {
        let [v4, v6, link_local] = [host.ip().into(), host.ipv6().into(), host.link_local().into()];
        if self.ipv6 { [v6, v4, link_local] } else { [v4, v6, link_local] }
    }

    /// The lab's hosts, in order.
    pub fn hosts(&self) -> impl Iterator<Item = HostName> + use<> {
        (0..self.hosts).map(HostName)
    }

    /// Returns `host` if the lab has it.
    ///
    /// # Errors
    /// [`NoSuchHost`], which names the lab's hosts.
    pub fn check_host(&self, host: HostName) -> Result<(), NoSuchHost> {
        if host.0 < self.hosts { Ok(()) } else { Err(NoSuchHost { host, hosts: self.hosts }) }
    }

    /// Programs that each host can run at a time, a power of two. One loop serves all of them, so
    /// it is lower for many hosts.
    pub fn slots(&self) -> usize {
        if self.back_to_back {
            return 1;
        }
        let most = (PROGRAMS_MAX / usize::from(self.hosts).max(1)).clamp(1, SLOTS_MAX);
        1 << most.ilog2()
    }

    /// The numbering of the lab node's sides.
    pub(crate) fn sides(&self) -> Sides {
        Sides::new(usize::from(self.hosts), self.slots())
    }

    /// Marking by the queues; `None`: none.
    pub fn ecn(&self) -> Option<RedConfig> {
        self.ecn.of_queue(self.queue)
    }

    /// The fibre between the sites.
    pub fn fibre(&self) -> Fibre {
        Fibre {
            delay: Span::of_fibre_m(self.distance.metres()),
            rate: self.rate,
            loss: self.loss,
            bursts: bursts(self.loss_burst, None),
            cut: cuts(self.cut_for, self.cut_every),
            impairments: Impairments::default(),
            rules: self.rule.clone(),
            changes: self.at.clone(),
            queue: self.queue,
            ecn: self.ecn,
            memory: self.memory,
            seed: self.seed,
        }
    }
}

/// Highest rate of a lab, far above what one machine forwards.
const RATE_MAX: BitRate = BitRate::from_gbps(10_000).unwrap();

/// Parses a rate.
fn rate(text: &str) -> Result<BitRate, String> {
    let rate: BitRate = text.parse().map_err(|e: ParseBitRateError| e.to_string())?;
    if rate <= RATE_MAX { Ok(rate) } else { Err("a lab's rate is at most 10T".to_string()) }
}

mod time_as_ps {
    use super::Span;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub fn serialize<S: Serializer>(time: &Option<Span>, to: S) -> Result<S::Ok, S::Error> {
        time.map(Span::as_ps).serialize(to)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Span>, D::Error> {
        Ok(Option::<u64>::deserialize(from)?.map(Span::from_ps))
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

/// Network that the hosts of a lab are to have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum NetworkChoice {
    /// Each its own, where this is possible.
    #[default]
    Kernel,
    /// None.
    None,
}

/// The sites with accelerators.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Accelerate {
    /// None.
    None,
    /// Both.
    Both,
    /// Both, as whole boxes with the WAN transport between them.
    Transport,
    /// The same, with read-ahead of the commands of all protocols.
    ReadAhead,
    /// Host a's.
    A,
    /// Host b's.
    B,
}

impl Accelerate {
    /// True if host a's site has an accelerator.
    pub fn at_a(self) -> bool {
        !matches!(self, Accelerate::None | Accelerate::B)
    }

    /// True if host b's site has an accelerator.
    pub fn at_b(self) -> bool {
        !matches!(self, Accelerate::None | Accelerate::A)
    }

    /// True if the sites have whole boxes.
    pub fn has_transport(self) -> bool {
        matches!(self, Accelerate::Transport | Accelerate::ReadAhead)
    }
}

impl fmt::Display for Accelerate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Accelerate::None => "none",
            Accelerate::Both => "both",
            Accelerate::Transport => "transport",
            Accelerate::ReadAhead => "read-ahead",
            Accelerate::A => "a",
            Accelerate::B => "b",
        })
    }
}

/// Host names are letters.
pub(crate) const HOSTS_MAX: usize = 26;
/// Program slots of all hosts.
const PROGRAMS_MAX: usize = 128;
/// A loop has a port for each program slot and each host's kernel.
const _: () = assert!(PROGRAMS_MAX + HOSTS_MAX <= longhaul_host::PORTS_MAX);
/// Program slots of a host in a small lab.
const SLOTS_MAX: usize = 16;

/// A host of a lab, by its number: a is 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct HostName(u8);

impl HostName {
    /// The first host at the first site, 10.77.0.1.
    pub const A: HostName = HostName(0);
    /// The first host at the second site, 10.77.0.2.
    pub const B: HostName = HostName(1);

    /// The number.
    pub const fn index(self) -> usize {
        self.0 as usize
    }

    /// The host with this number, which must be below 26.
    pub fn of_index(index: usize) -> Self {
        debug_assert!(index < HOSTS_MAX);
        HostName(index as u8)
    }

    /// IPv4 address.
    pub const fn ip(self) -> Ipv4Addr {
        Ipv4Addr::new(10, 77, 0, self.0 + 1)
    }

    /// IPv6 address. It ends in the IPv4 address, so that both have the same Ethernet address.
    pub fn ipv6(self) -> Ipv6Addr {
        self.ipv6_in(0xfd77)
    }

    /// Link-local IPv6 address, which ends as the other one does.
    pub fn link_local(self) -> Ipv6Addr {
        self.ipv6_in(0xfe80)
    }

    fn ipv6_in(self, prefix: u16) -> Ipv6Addr {
        let [a, b, c, d] = self.ip().octets();
        Ipv6Addr::new(prefix, 0, 0, 0, 0, 0, u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d]))
    }

    /// Ethernet address.
    pub fn mac(self) -> MacAddr {
        longhaul_rdma::attach::mac_of(self.ip().into())
    }

    /// Site: 0 for a, c, e ..., 1 for b, d, f ...
    pub const fn site(self) -> usize {
        self.index() % 2
    }
}

impl fmt::Display for HostName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", char::from(b'a' + self.0))
    }
}

/// A lab without this host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub struct NoSuchHost {
    host: HostName,
    /// Number of hosts of the lab, at least 2.
    hosts: u8,
}

impl fmt::Display for NoSuchHost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = |number| format!("{} ({})", HostName(number), HostName(number).ip());
        let last = self.hosts.saturating_sub(1);
        let others: Vec<String> = (0..last).map(name).collect();
        let (host, others, last) = (self.host, others.join(", "), name(last));
        write!(f, "no host '{host}' in the lab: its hosts are {others} and {last}")
    }
}

/// The text is not a host of any lab.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error(
    "no host '{0}' in any lab: hosts are a ({a}), b ({b}), c and so on",
    a = HostName::A.ip(),
    b = HostName::B.ip()
)]
pub struct HostNameError(pub String);

impl FromStr for HostName {
    type Err = HostNameError;

    fn from_str(text: &str) -> Result<Self, HostNameError> {
        match text.as_bytes() {
            [letter] if letter.is_ascii_alphabetic() => {
                Ok(HostName(letter.to_ascii_lowercase() - b'a'))
            }
            _ => Err(HostNameError(text.to_string())),
        }
    }
}

impl TryFrom<String> for HostName {
    type Error = HostNameError;

    fn try_from(text: String) -> Result<Self, HostNameError> {
        text.parse()
    }
}

impl From<HostName> for String {
    fn from(host: HostName) -> String {
        host.to_string()
    }
}

/// Name of a lab: it becomes a directory name, and socket paths are short.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct LabName(String);

impl LabName {
    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The part ` OPTION NAME` of a command on this lab; empty for the default name.
    pub fn option(&self, option: &str) -> String {
        if *self == LabName::default() { String::new() } else { format!(" {option} {self}") }
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

/// The text is not a valid name of a lab.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("a lab's name is 1 to 32 letters, digits, - or _")]
pub struct LabNameError;

impl FromStr for LabName {
    type Err = LabNameError;

    fn from_str(text: &str) -> Result<Self, LabNameError> {
        let fits = !text.is_empty()
            && text.len() <= 32
            && text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_');
        if fits { Ok(LabName(text.to_string())) } else { Err(LabNameError) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        spec: Spec,
    }

    pub fn spec(arguments: &str) -> Result<Spec, String> {
        let arguments = std::iter::once("up").chain(arguments.split_whitespace());
        Cli::try_parse_from(arguments).map(|cli| cli.spec).map_err(|e| e.to_string())
    }

    #[test]
    fn hosts_are_letters_with_addresses_in_their_order() {
        let spec = spec("--hosts 26").unwrap();
        let hosts: Vec<HostName> = spec.hosts().collect();
        assert_eq!(hosts.len(), 26);
        assert_eq!(hosts[25].to_string(), "z");
        assert_eq!(hosts[25].ip(), Ipv4Addr::new(10, 77, 0, 26));
        assert_eq!(hosts[25].ipv6(), "fd77::a4d:1a".parse::<Ipv6Addr>().unwrap());
        let mac = longhaul_rdma::attach::mac_of(hosts[25].ipv6().into());
        assert_eq!(mac, hosts[25].mac(), "of both families");
        assert_eq!(hosts[2].mac(), MacAddr([2, 0, 10, 77, 0, 3]));
        assert_eq!(
            ["A".parse(), "a".parse(), "z".parse()],
            [Ok(hosts[0]), Ok(hosts[0]), Ok(hosts[25])]
        );
        for text in ["", "aa", "7", "ä"] {
            assert!(text.parse::<HostName>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_host_that_the_lab_has_not_is_answered_with_those_that_it_has() {
        let spec = spec("--hosts 3").unwrap();
        assert_eq!(spec.check_host("c".parse().unwrap()), Ok(()));
        assert_eq!(
            spec.check_host("d".parse().unwrap()).unwrap_err().to_string(),
            "no host 'd' in the lab: its hosts are a (10.77.0.1), b (10.77.0.2) and c (10.77.0.3)"
        );
    }

    #[test]
    fn all_programs_together_fit_one_loop() {
        for hosts in 2..=26 {
            let spec = spec(&format!("--hosts {hosts}")).unwrap();
            assert!(
                spec.slots().is_power_of_two() && spec.slots() * hosts <= PROGRAMS_MAX,
                "{hosts} hosts"
            );
            assert!(spec.slots() >= 4, "{hosts} hosts");
        }
        assert_eq!(spec("").unwrap().slots(), 16);
        for hosts in ["0", "1", "27", "many"] {
            assert!(spec(&format!("--hosts {hosts}")).is_err(), "{hosts} hosts");
        }
    }

    #[test]
    fn marking_is_off_or_by_thresholds() {
        assert_eq!(spec("").unwrap().ecn(), None);
        let red = spec("--queue 16M --ecn").unwrap().ecn().unwrap();
        assert_eq!((red.kmin_bytes, red.kmax_bytes, red.pmax), (1 << 20, 4 << 20, 0.1));
        let red = spec("--ecn 100K:400K:0.02").unwrap().ecn().unwrap();
        assert_eq!((red.kmin_bytes, red.kmax_bytes, red.pmax), (100 << 10, 400 << 10, 0.02));
        for text in ["maybe", "1M", "4M:1M", "1M:4M:2", "1M:4M:0.1:7", "x:y"] {
            assert!(spec(&format!("--ecn {text}")).is_err(), "{text}");
        }
    }

    #[test]
    fn what_is_written_down_is_read_back() {
        for arguments in ["", "--hosts 5 --ecn", "--ecn 64K:1M:0.25 --loss 1e-4"] {
            let spec = spec(arguments).unwrap();
            let text = serde_json::to_string(&spec).unwrap();
            let read: Spec = serde_json::from_str(&text).unwrap();
            assert_eq!(serde_json::to_string(&read).unwrap(), text);
            assert_eq!((read.hosts, read.ecn), (spec.hosts, spec.ecn));
        }
    }
}
