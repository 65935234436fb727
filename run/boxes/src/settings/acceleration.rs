//! Settings of an accelerator between two ports, and the box that they configure.

use super::table::settings;
use super::{Far, Peer, Psk, SettingsError, WanRate, far, read_key, seed};
use crate::carrier::Carrier;
use crate::cores::{Cores, cores_written};
use crate::journal::{self, Level};
use crate::plan::{BoxKind, Fault, Pair, Section, Settings, by, parsed, written};
use crate::port::{PortName, mtu};
use crate::quantity::{Distance, Size, memory};
use crate::random_seed;
use longhaul_accel::{Config, EceMode, Mode, Policy, Prefix, Rule};
use longhaul_host::Spread;
use longhaul_host::placement::CoreList;
use longhaul_readahead::Protocol;
use longhaul_seal::Cleartext;
use longhaul_units::{BitRate, Duration as Span};
use longhaul_wan_box::{Halves, Identity, Path, Sizing, WanBox};
use serde::Deserialize;
use std::num::NonZeroUsize;
use std::ops::RangeInclusive;
use std::path::PathBuf;

/// Maximum number of paths of one transport.
const PATHS_MAX: usize = 15;

/// Maximum bytes that the transport adds to a frame; parity datagrams add the most.
const TRANSPORT_OVERHEAD: u32 = 64;

/// Bytes around the payload of the longest RoCE packet: IPv6, UDP, BTH, RETH, immediate, ICRC.
const ROCE_HEADERS: u32 = 40 + 8 + 12 + 16 + 4 + 4;

/// The journal's and status' warning about --key-optional.
const KEYS_ARE_OPTIONAL: &str = "keys are optional (--key-optional): RDMA traffic that no box with \
                                 a key serves crosses the WAN in cleartext, and the box accepts \
                                 such traffic from the WAN";

settings! {
/// Settings of an accelerator, all optional.
#[derive(Clone, Debug, Default, PartialEq, clap::Args, Deserialize)]
#[serde(default)]
pub struct Acceleration {
    /// Rate of the WAN path; the box never exceeds it [default: as fast as the port takes frames]
    #[arg(long)]
    #[serde(deserialize_with = "written")]
    rate: Option<BitRate> => LiveWithoutTransport;
    /// Length of the WAN path; sets the window
    #[arg(long)]
    #[serde(deserialize_with = "written")]
    distance: Option<Distance> => LiveWithoutTransport;
    /// Maximum bytes acknowledged to a requester but not yet by its responder [default: 4 times the
    /// bytes in flight in a round trip, at least 16M; 64M without rate and distance]
    #[arg(long, value_name = "SIZE")]
    #[serde(deserialize_with = "written")]
    window: Option<Size> => Live;
    /// Memory for the store [default: 1G]
    #[arg(long, value_name = "SIZE", value_parser = memory)]
    #[serde(deserialize_with = "memory_written")]
    memory: Option<Size> => Live;
    /// Time without responses after which the box gives up a flow [default: 20s]
    #[arg(long, value_name = "TIME")]
    #[serde(deserialize_with = "written")]
    give_up: Option<Span> => Live;
    /// Run a whole box: also accelerate the responders of this site, and tunnel all frames to the
    /// far box, which needs --transport too, by a protocol that repairs the path's losses. Frames
    /// longer than the path's MTU are split: set the MTU of the WAN port and of the path at least
    /// 64 bytes above the hosts'
    #[arg(long)]
    transport: bool => Restart;
    /// Rate of the transport: 'adaptive' follows the path's free capacity, shares it with other
    /// traffic and never exceeds --rate; 'port' sends as fast as the port takes frames; or a fixed
    /// rate [default: --rate, otherwise port]
    #[arg(long, value_name = "adaptive|port|RATE")]
    wan_rate: Option<WanRate> => Restart;
    /// Private key of this box, made by 'longhaul key new': the transport encrypts all that it
    /// sends, and accepts only encrypted datagrams from the WAN. Needs --peer, and 32 bytes more of
    /// the path's MTU
    #[arg(long, value_name = "FILE")]
    key: Option<PathBuf> => Restart;
    /// Name and public key of another site's box; may be repeated
    #[arg(long, value_name = "NAME=KEY")]
    peer: Vec<Peer> => Restart;
    /// File of an additional secret shared with a peer, made by 'longhaul key psk'; may be repeated
    #[arg(long, value_name = "NAME=FILE")]
    psk: Vec<Psk> => Restart;
    /// With --key: addresses beyond the WAN that have no box; RDMA traffic with them crosses the
    /// WAN in cleartext, all other is encrypted or dropped; may be repeated
    #[arg(long, value_name = "PREFIX")]
    #[serde(deserialize_with = "prefixes_written")]
    clear: Vec<Prefix> => Restart;
    /// With --key: let RDMA traffic that no box with a key serves cross the WAN in cleartext
    /// instead of dropping it. An attacker who drops the encrypted datagrams can then read the
    /// traffic
    #[arg(long)]
    key_optional: bool => Restart;
    /// Fetch immediately the data that commands of these protocols let their target READ, which
    /// saves writes a round trip: nvme (NVMe-oF), rpc (NFS over RDMA). Needs --transport, and both
    /// options at both sites; connections of these protocols then need both boxes [default: none]
    #[arg(long, value_name = "nvme,rpc", value_delimiter = ',')]
    #[serde(deserialize_with = "protocols_written")]
    read_ahead: Vec<Protocol> => Restart;
    /// Prefix of a far site, and an address behind its box that the box asks for instead of each
    /// address by itself. Other addresses then have no far box, unless --probe is given; may be
    /// repeated
    #[arg(long, value_name = "PREFIX[=ADDRESS]")]
    far: Vec<Far> => Restart;
    /// With --far: also look for a far box for every other address that hosts send to
    #[arg(long)]
    probe: bool => Restart;
    /// Bits of a host's IPv4 address that identify its tenant; tenants share the memory equally, as
    /// far as each needs it [default: 32]
    #[arg(long, value_name = "BITS")]
    tenant_prefix_ipv4: Option<u8> => Restart;
    /// Bits of a host's IPv6 address that identify its tenant, as --tenant-prefix-ipv4 [default:
    /// 128]
    #[arg(long, value_name = "BITS")]
    tenant_prefix_ipv6: Option<u8> => Restart;
    /// Maximum number of flows [default: 4096]
    #[arg(long, value_name = "N")]
    flows: Option<u32> => Restart;
    /// Meaning of a completion, for flows that match no policy rule of a file: early (this box has
    /// the message), far (the far box has it; off if there is none), tail or off (the responder has
    /// it) [default: early]
    #[arg(long)]
    #[serde(deserialize_with = "written")]
    mode: Option<Mode> => Live;
    /// Vendor features that NICs offer each other by ECE while they connect by RDMA-CM, such as
    /// selective repeat: clear (both NICs use the plain transport, which the box expects) or pass
    /// (leave them) [default: clear]
    #[arg(long, value_name = "clear|pass")]
    #[serde(deserialize_with = "written")]
    ece: Option<EceMode> => Live;
    /// Cores that share the ports: a number, as 2, or the processors to run on, as 4-7 or 0,2. All
    /// traffic between two hosts maps to one core; with --transport both boxes need the same
    /// number; docs/cores.md describes the setup of NICs [default: 1]
    #[arg(long, value_name = "LIST")]
    #[serde(deserialize_with = "cores_written")]
    cores: Option<CoreList> => Restart;
    /// NUMA node whose processors the cores run on, if --cores is a number [default: the node of
    /// the first port's device, with several cores]
    #[arg(long, value_name = "NODE")]
    numa: Option<u32> => Restart;
    /// What the ports do when an opposite one loses its carrier, and when the box ends: follow (go
    /// down, so that LACP, BFD and routing notice) or off [default: follow]
    #[arg(long, value_name = "follow|off")]
    carrier: Option<Carrier> => Restart;
    /// Rules of a file; they precede `mode`.
    #[arg(skip)]
    #[serde(skip)]
    policy: Option<Vec<Rule>> => Live;
}
}

/// One `[[policy]]` table of a file.
#[derive(Deserialize)]
struct RuleWritten {
    #[serde(deserialize_with = "parsed")]
    mode: Mode,
    #[serde(default, deserialize_with = "written")]
    source: Option<Prefix>,
    #[serde(default, deserialize_with = "written")]
    destination: Option<Prefix>,
    #[serde(default, deserialize_with = "qpns_written")]
    qpn: Option<RangeInclusive<u32>>,
    dscp: Option<u8>,
}

impl From<RuleWritten> for Rule {
    fn from(rule: RuleWritten) -> Self {
        let RuleWritten { mode, source, destination, qpn, dscp } = rule;
        Rule { source, destination, qpns: qpn, dscp, mode }
    }
}

/// `17`, or `"100-200"`.
fn qpns_written<'de, D: serde::Deserializer<'de>>(
    from: D,
) -> Result<Option<RangeInclusive<u32>>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged, expecting = "write a number, or two as in \"100-200\"")]
    enum Written {
        One(u32),
        Text(String),
    }
    let text = match Written::deserialize(from)? {
        Written::One(qpn) => return Ok(Some(qpn..=qpn)),
        Written::Text(text) => text,
    };
    let (first, last) = text.split_once('-').unwrap_or((&text, &text));
    match (first.trim().parse(), last.trim().parse()) {
        (Ok(first), Ok(last)) => Ok(Some(first..=last)),
        _ => Err(serde::de::Error::custom("write a number, or two as in \"100-200\"")),
    }
}

fn protocols_written<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Vec<Protocol>, D::Error> {
    let words = Vec::<String>::deserialize(from)?;
    words.iter().map(|word| word.parse().map_err(serde::de::Error::custom)).collect()
}

fn prefixes_written<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Vec<Prefix>, D::Error> {
    let texts = Vec::<String>::deserialize(from)?;
    texts.iter().map(|text| text.parse().map_err(serde::de::Error::custom)).collect()
}

fn memory_written<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Option<Size>, D::Error> {
    by(from, memory)
}

impl Settings for Acceleration {
    fn allows(&self, paths: usize) -> Result<(), String> {
        let why = match paths {
            1 => return Ok(()),
            _ if !self.transport => {
                "several are the paths of a transport: add --transport, or a --lan for each"
            }
            2..=PATHS_MAX => return Ok(()),
            _ => "a transport has 1 to 15 paths",
        };
        Err(why.to_string())
    }

    fn has_transport(&self) -> bool {
        self.transport
    }

    fn cores(&self) -> Cores {
        Cores::new(&self.cores, self.numa)
    }

    fn take_policy(&mut self, sections: Vec<Section<'_>>) -> Result<(), Fault> {
        let mut rules: Vec<Rule> = Vec::new();
        for section in sections {
            let place = section.place;
            rules.push(section.read::<RuleWritten>()?.into());
            // Checked here, where the line is known.
            Policy::new(rules.clone(), Mode::default()).map_err(|e| place.fault(e.to_string()))?;
        }
        self.policy = Some(rules);
        Ok(())
    }

    fn take_far(&mut self, sections: Vec<Section<'_>>) -> Result<(), Fault> {
        self.far.clear();
        for section in sections {
            let place = section.place;
            self.far.push(section.read::<far::Written>()?.into());
            // Checked here, where the line is known.
            longhaul_wan::Config { far: self.far_boxes(), ..Default::default() }
                .check()
                .map_err(|e| place.fault(e.to_string()))?;
        }
        Ok(())
    }
}

impl BoxKind for Acceleration {
    type Element = WanBox;
    const COMMAND: &'static str = "accelerate";
    const SPREAD: Spread = Spread::ByPair;
    const STAMPS: bool = false;

    fn allows_cores(&self, count: NonZeroUsize) -> Result<(), SettingsError> {
        let with_address = self.far.iter().find_map(|far| Some((far.0.prefix, far.0.via?)));
        if let Some((prefix, via)) = with_address {
            return Err(SettingsError::ViaWithCores { prefix, via, count });
        }
        self.wan_box(vec![None])
            .map(drop)
            .map_err(|error| SettingsError::PartOfCore { count, error: Box::new(error) })
    }

    fn summary(&self) -> Option<String> {
        let count = self.cores().count();
        if count == NonZeroUsize::MIN {
            return None;
        }
        let sizing = self.sizing(vec![None]);
        let config = sizing.accelerator();
        let rate = match self.rate {
            None => String::new(),
            Some(rate) if self.transport => sizing
                .part_of_rate(rate)
                .map_or_else(String::new, |part| format!(", at up to {part}")),
            Some(rate) => format!(", at up to {rate} together"),
        };
        Some(format!(
            "{count} cores, each serving its share of the host pairs: with {} of the memory, {} of \
             the flows{rate}",
            Size::from_bytes(config.total_bytes_max),
            config.flows_max,
        ))
    }

    fn build(&self, behind: &[PortName]) -> Result<Vec<WanBox>, SettingsError> {
        let sizing = self.sizing(behind.iter().map(mtu).collect());
        let accelerator = self.accelerator(&sizing)?;
        let of_core = |_| self.of_core(&sizing, accelerator.clone());
        (0..sizing.cores.get()).map(of_core).collect()
    }

    fn carrier(&self) -> Carrier {
        self.carrier.unwrap_or_default()
    }

    fn warn(pairs: &[Pair<Self>]) {
        warn_of_mtus(pairs);
        for pair in pairs {
            for note in pair.settings.notes() {
                journal::of_pair(Level::Warning, &pair.name, &note);
            }
        }
    }

    fn notes(&self) -> Vec<String> {
        let is_optional = self.key_optional && self.key.is_some();
        is_optional.then(|| KEYS_ARE_OPTIONAL.to_string()).into_iter().collect()
    }

    fn change(&self, behind: &[PortName]) -> Result<Halves, SettingsError> {
        let sizing = self.sizing(behind.iter().map(mtu).collect());
        Halves::new(self.accelerator(&sizing)?, sizing.round_trip(), self.transport)
            .map_err(SettingsError::Halves)
    }
}

impl Acceleration {
    /// One path per entry of `mtus`, the MTUs of the WAN ports.
    fn sizing(&self, mtus: Vec<Option<u32>>) -> Sizing {
        let defaults = Sizing::default();
        let path = |mtu| Path {
            capacity: self.rate,
            rate: WanRate::or_known(self.wan_rate, self.rate),
            mtu,
        };
        Sizing {
            paths: mtus.into_iter().map(path).collect(),
            delay: self.distance.map(|distance| Span::of_fibre_m(distance.metres())),
            memory_bytes: self.memory.map_or(defaults.memory_bytes, Size::bytes),
            window_bytes: self.window.map(Size::bytes),
            flows_max: self.flows.unwrap_or(defaults.flows_max),
            cores: self.cores().count(),
            ..defaults
        }
    }

    /// The accelerator configuration of each core. It contains the state that cores share, so all
    /// cores need clones of one call's result.
    fn accelerator(&self, sizing: &Sizing) -> Result<Config, SettingsError> {
        let rules = self.policy.clone().unwrap_or_default();
        let policy = Policy::new(rules, self.mode.unwrap_or_default())?;
        let memory = Size::from_bytes(sizing.memory_bytes);
        if let Some(window) = self.window.filter(|window| *window > memory) {
            return Err(SettingsError::WindowOverMemory { window, memory });
        }
        let sized = sizing.accelerator();
        Ok(Config {
            tenant_prefix_ipv4: self.tenant_prefix_ipv4.unwrap_or(sized.tenant_prefix_ipv4),
            tenant_prefix_ipv6: self.tenant_prefix_ipv6.unwrap_or(sized.tenant_prefix_ipv6),
            give_up_after: self.give_up.unwrap_or(sized.give_up_after),
            policy,
            ece: self.ece.unwrap_or_default(),
            ..sized
        })
    }

    /// The seal's configuration, if this box has a key.
    fn sealing(&self) -> Result<Option<longhaul_seal::Config>, SettingsError> {
        let Some(file) = &self.key else {
            let what = [
                self.peer.first().map(|peer| format!("--peer {}", peer.name)),
                self.psk.first().map(|psk| format!("--psk for {}", psk.peer)),
                self.clear.first().map(|prefix| format!("--clear {prefix}")),
                self.key_optional.then(|| "--key-optional".to_string()),
            ];
            return match what.into_iter().flatten().next() {
                None => Ok(None),
                Some(what) => Err(SettingsError::WithoutKey(what)),
            };
        };
        if !self.transport {
            return Err(SettingsError::KeyWithoutTransport);
        }
        if self.peer.is_empty() {
            return Err(SettingsError::KeyWithoutPeer);
        }
        let peer = |peer: &Peer| {
            let psk = self.psk.iter().find(|psk| psk.peer == peer.name);
            Ok(longhaul_seal::PeerConfig {
                name: peer.name.clone(),
                public_key: peer.key,
                preshared_key: psk.map(|psk| read_key(&psk.file)).transpose()?,
            })
        };
        let peers = self.peer.iter().map(peer).collect::<Result<Vec<_>, SettingsError>>()?;
        if let Some(psk) =
            self.psk.iter().find(|psk| peers.iter().all(|peer| peer.name != psk.peer))
        {
            return Err(SettingsError::PskOfNobody(psk.peer.clone()));
        }
        let config = longhaul_seal::Config::new(read_key(file)?, peers, seed()?);
        let ciphers = longhaul_seal::Cipher::for_this_processor();
        Ok(Some(longhaul_seal::Config { ciphers, cleartext: self.cleartext()?, ..config }))
    }

    /// RDMA traffic that may cross the WAN in cleartext although this box has a key.
    fn cleartext(&self) -> Result<Cleartext, SettingsError> {
        if self.key_optional {
            return match self.clear.first() {
                None => Ok(Cleartext::Any),
                Some(prefix) => Err(SettingsError::ClearWithKeyOptional(*prefix)),
            };
        }
        for clear in &self.clear {
            let overlaps = |far: &&Far| far.0.prefix.covers(clear) || clear.covers(&far.0.prefix);
            if let Some(far) = self.far.iter().find(overlaps) {
                return Err(SettingsError::ClearOverlapsFar { clear: *clear, far: far.0.prefix });
            }
        }
        Ok(Cleartext::Of(self.clear.clone()))
    }

    fn far_boxes(&self) -> Vec<longhaul_wan::FarBox> {
        self.far.iter().map(|far| far.0).collect()
    }

    /// The box of a single core, with one path per entry of `mtus`.
    fn wan_box(&self, mtus: Vec<Option<u32>>) -> Result<WanBox, SettingsError> {
        let sizing = self.sizing(mtus);
        self.of_core(&sizing, self.accelerator(&sizing)?)
    }

    /// The box of one core.
    fn of_core(&self, sizing: &Sizing, accelerator: Config) -> Result<WanBox, SettingsError> {
        let config = self.core_config(sizing, accelerator)?;
        Ok(WanBox::new(config)?)
    }

    /// Configuration of a single core's box with one path of unknown MTU.
    ///
    /// # Errors
    /// If the settings contradict each other.
    pub fn box_config(&self) -> Result<longhaul_wan_box::Config, SettingsError> {
        let sizing = self.sizing(vec![None]);
        self.core_config(&sizing, self.accelerator(&sizing)?)
    }

    /// Configuration of one core's box.
    fn core_config(
        &self,
        sizing: &Sizing,
        accelerator: Config,
    ) -> Result<longhaul_wan_box::Config, SettingsError> {
        let accelerator = Config { seed: random_seed(), ..accelerator };
        let sealing = self.sealing()?;
        far::check_not_own(&self.far)?;
        let config = if self.transport {
            let identity = Identity { box_id: random_seed(), seed: seed()? };
            let around = if sealing.is_some() { longhaul_seal::OVERHEAD } else { 0 };
            let transport = longhaul_wan::Config {
                far: self.far_boxes(),
                asks_others: self.far.is_empty() || self.probe,
                ..sizing.transport(identity, around)
            };
            longhaul_wan_box::Config::whole(accelerator, transport, sizing.round_trip())
        } else {
            self.allows_no_transport()?;
            longhaul_wan_box::Config::alone(accelerator)
        };
        let config = config.sealed(sealing);
        let read_ahead = (!self.read_ahead.is_empty()).then(|| longhaul_readahead::Config {
            seed: random_seed(),
            ..sizing.read_ahead(longhaul_readahead::Config::of(&self.read_ahead))
        });
        Ok(config.reading_ahead(read_ahead))
    }

    /// Returns an error if a setting is given that requires a transport.
    fn allows_no_transport(&self) -> Result<(), SettingsError> {
        if !self.far.is_empty() {
            Err(SettingsError::FarWithoutTransport)
        } else if !self.read_ahead.is_empty() {
            Err(SettingsError::ReadAheadWithoutTransport)
        } else if self.wan_rate.is_some() {
            Err(SettingsError::WanRateWithoutTransport)
        } else {
            Ok(())
        }
    }
}

/// Warns of WAN interfaces whose MTU splits the hosts' longest RoCE packets.
fn warn_of_mtus(pairs: &[Pair<Acceleration>]) {
    for pair in pairs.iter().filter(|pair| pair.settings.transport) {
        let Some((lan, wans)) = pair.ports.split_first() else { continue };
        let sealed = if pair.settings.key.is_some() { longhaul_seal::OVERHEAD as u32 } else { 0 };
        let overhead = TRANSPORT_OVERHEAD + sealed;
        let Some(roce_mtu) = mtu(lan).and_then(roce_mtu) else { continue };
        let mtus = wans.iter().filter_map(|wan| Some((wan, mtu(wan)?)));
        for (wan, path) in mtus {
            let needed = roce_mtu + ROCE_HEADERS + overhead;
            if path >= needed {
                continue;
            }
            let text = format!(
                "the MTU of {wan} is {path}: RoCE packets of {roce_mtu} bytes, which the hosts on \
                 {lan} may send, need {needed} with the box's {overhead} bytes, so that the box \
                 splits them, which costs some of the path's rate; raise the MTU of {wan} and of \
                 the path, or lower the hosts' RoCE MTU"
            );
            journal::of_pair(Level::Warning, &pair.name, &text);
        }
    }
}

/// RoCE MTU, in bytes of payload, of hosts with this interface MTU.
fn roce_mtu(interface: u32) -> Option<u32> {
    [4096, 2048, 1024, 512, 256].into_iter().find(|payload| payload + ROCE_HEADERS <= interface)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::element::Element;
    use crate::plan::{Given, Process, plan};
    use crate::settings::table::{Changes, Key, Table};
    use clap::Parser;
    use longhaul_accel::Pacing;
    use std::os::unix::fs::PermissionsExt;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        settings: Acceleration,
    }

    const SIDES: [&str; 2] = WanBox::SIDES;

    pub fn settings(arguments: &str) -> Acceleration {
        let arguments = std::iter::once("accelerate").chain(arguments.split_whitespace());
        Cli::try_parse_from(arguments).unwrap().settings
    }

    fn accelerator(arguments: &str) -> Config {
        let settings = settings(arguments);
        settings.accelerator(&settings.sizing(vec![None])).unwrap()
    }

    #[test]
    fn hosts_send_roce_packets_as_long_as_their_interface_allows() {
        let expected = [(9000, Some(4096)), (4180, Some(4096)), (4179, Some(2048))];
        for (interface, payload) in expected.into_iter().chain([(1500, Some(1024)), (300, None)]) {
            assert_eq!(roce_mtu(interface), payload, "{interface}");
        }
    }

    #[test]
    fn the_window_follows_rate_and_distance_unless_it_is_given() {
        let window = |arguments| accelerator(arguments).ack_window_bytes;
        assert_eq!(window(""), Config::default().ack_window_bytes);
        assert_eq!(window("--rate 10G --distance 1000km"), 50_000_000);
        assert_eq!(window("--rate 10G --distance 1km"), 16 << 20);
        assert_eq!(window("--rate 10G --distance 1000km --window 7M"), 7 << 20);
    }

    #[test]
    fn cores_have_their_parts_of_what_is_bounded_for_all() {
        let one = accelerator("--rate 10G --distance 1000km --memory 1G --flows 4096");
        let four = accelerator("--rate 10G --distance 1000km --memory 1G --flows 4096 --cores 4");
        assert_eq!(
            (four.total_bytes_max, four.flows_max),
            (one.total_bytes_max / 4, one.flows_max / 4)
        );
        // The accelerators share one rate, both when created and when reconfigured.
        assert_eq!(four.wan_pacing.rate(), one.wan_pacing.rate());
        assert!(matches!(four.wan_pacing, Pacing::Shared(_)), "{:?}", four.wan_pacing);
        assert!(matches!(one.wan_pacing, Pacing::Own(_)), "{:?}", one.wan_pacing);
        let built =
            settings("--rate 10G --memory 1G --cores 2").build(&["eth1".parse().unwrap()]).unwrap();
        let pacings = built.iter().map(|one| one.near().config().wan_pacing.clone());
        let pacings: Vec<Pacing> = pacings.collect();
        assert!(pacings.len() == 2 && pacings[0] == pacings[1], "{pacings:?}");
        assert!(matches!(pacings[0], Pacing::Shared(_)), "{pacings:?}");
        assert_eq!(four.passthrough_bytes_max, one.passthrough_bytes_max / 4);
        assert_eq!(four.connections_max, one.connections_max / 4);
        assert_eq!(four.ack_window_bytes, one.ack_window_bytes, "a flow's is its own");
        // A transport gets its part of the rate, and of the memory that depends on it.
        let whole = settings("--rate 10G --distance 1000km --memory 1G --transport --cores 4");
        let built = whole.build(&["eth1".parse().unwrap()]).unwrap();
        assert_eq!(built.len(), 4);
        for one in &built {
            let transport = one.transport().unwrap().config();
            assert_eq!(transport.paths[0].rate.most().map(BitRate::as_bps), Some(2_500_000_000));
            assert_eq!((transport.cores, transport.send_bytes_max), (4, 2 * 12_500_000 / 4));
        }
        assert!(four.flow_bytes_max <= four.total_bytes_max);
    }

    #[test]
    fn several_paths_are_those_of_a_transport() {
        for (arguments, paths, part) in [
            ("", 2, "add --transport, or a --lan for each"),
            ("--transport", 16, "1 to 15 paths"),
            ("--transport", 0, "1 to 15 paths"),
        ] {
            let refusal = settings(arguments).allows(paths).unwrap_err();
            assert!(refusal.contains(part), "{arguments}: {refusal}");
        }
        assert!(
            settings("").allows(1).is_ok() && settings("--transport --key x").allows(2).is_ok()
        );
        let fifteen = settings("--transport --rate 1G --distance 10km");
        assert!(fifteen.allows(15).is_ok() && fifteen.wan_box(vec![None; 15]).is_ok());
    }

    #[test]
    fn keys_are_for_all_paths() {
        let file = std::env::temp_dir().join(format!("longhaul-paths-{:x}.key", random_seed()));
        let own = longhaul_seal::PrivateKey::generate(&longhaul_seal::Seed::new([1; 32]));
        let far = longhaul_seal::PrivateKey::generate(&longhaul_seal::Seed::new([2; 32])).public();
        std::fs::write(&file, own.to_text().as_bytes()).unwrap();
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).unwrap();
        let arguments = format!("--transport --key {} --peer east={far}", file.display());
        let built = [1, 2, 15].map(|paths| settings(&arguments).wan_box(vec![None; paths]));
        std::fs::remove_file(&file).unwrap();
        for (paths, made) in [1, 2, 15].into_iter().zip(built) {
            let made = made.unwrap_or_else(|why| panic!("{paths} paths: {why}"));
            let count = |of: Option<usize>| of.expect("a whole box");
            assert_eq!(count(made.transport().map(|node| node.config().paths.len())), paths);
            assert_eq!(count(made.seal().map(|seal| seal.config().paths.into())), paths);
        }
    }

    #[test]
    fn keys_fail_closed_unless_they_are_told_otherwise() {
        let dir = std::env::temp_dir().join(format!("longhaul-keys-{:x}", random_seed()));
        std::fs::create_dir(&dir).unwrap();
        let seed = |n: u8| longhaul_seal::Seed::new([n; 32]);
        let write = |name: &str, text: &str| {
            let file = dir.join(name);
            std::fs::write(&file, text).unwrap();
            std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).unwrap();
            file.display().to_string()
        };
        let own = write("key", &longhaul_seal::PrivateKey::generate(&seed(1)).to_text());
        let psk = write("psk", &longhaul_seal::PresharedKey::generate(&seed(3)).to_text());
        let far = longhaul_seal::PrivateKey::generate(&seed(2)).public();
        let with =
            |more: &str| settings(&format!("--transport --key {own} --peer east={far} {more}"));
        let built = |more: &str| with(more).wan_box(vec![None]).map_err(|e| e.to_string());
        let seal_of = |made: &WanBox| made.seal().unwrap().config().clone();
        let of_transport = |made: &WanBox| made.transport().unwrap().config().clone();

        let closed = built("").unwrap();
        assert_eq!(seal_of(&closed).cleartext, Cleartext::Of(vec![]));
        assert!(of_transport(&closed).waiting_bytes_max > 0, "frames wait instead of passing");
        assert!(of_transport(&closed).box_id != 0 && with("").notes().is_empty());
        let some = built("--clear 10.9.0.0/16").unwrap();
        let prefix: Prefix = "10.9.0.0/16".parse().unwrap();
        assert_eq!(seal_of(&some).cleartext, Cleartext::Of(vec![prefix]));
        assert_eq!(of_transport(&some).without_box, [prefix]);
        let open = built("--key-optional").unwrap();
        assert_eq!(seal_of(&open).cleartext, Cleartext::Any);
        assert_eq!(of_transport(&open).waiting_bytes_max, 0);
        assert_eq!(with("--key-optional").notes(), [KEYS_ARE_OPTIONAL]);
        assert!(seal_of(&closed).peers[0].preshared_key.is_none());
        let shared = built(&format!("--psk east={psk}")).unwrap();
        assert!(seal_of(&shared).peers[0].preshared_key.is_some());

        for (more, part) in [
            (format!("--psk west={psk}"), "--psk for 'west' without a --peer of that name"),
            (format!("--psk east={psk}x"), "No such file"),
            (
                "--clear 10.9.0.0/16 --key-optional".to_string(),
                "--clear 10.9.0.0/16 with --key-optional",
            ),
            ("--clear 10.9.0.0/16 --far 10.9.1.0/24".to_string(), "10.9.1.0/24 overlap"),
        ] {
            let refusal = built(&more).err().unwrap();
            assert!(refusal.contains(part), "{more}: {refusal}");
        }
        std::fs::remove_dir_all(&dir).unwrap();
        for (arguments, part) in [
            ("--transport --key-optional", "--key-optional without --key"),
            ("--transport --clear 10.0.0.0/8", "--clear 10.0.0.0/8 without --key"),
            ("--transport --psk east=x", "--psk for east without --key"),
        ] {
            let refusal = settings(arguments).wan_box(vec![None]).err().unwrap().to_string();
            assert!(refusal.contains(part), "{arguments}: {refusal}");
        }
    }

    #[test]
    fn what_it_is_given_can_always_be_built() {
        for arguments in [
            "",
            "--memory 64K",
            "--rate 400G --distance 20000km",
            "--window 4K",
            "--memory 1T --flows 1",
            "--transport",
            "--transport --rate 400G --distance 20000km",
            "--transport --wan-rate adaptive",
            "--transport --wan-rate 25G --distance 1000km",
        ] {
            assert!(settings(arguments).wan_box(vec![None]).is_ok(), "{arguments}");
        }
        assert!(
            settings("--transport --far 10.2.0.0/16=192.0.2.7 --far fd00::/8 --probe")
                .wan_box(vec![None])
                .is_ok()
        );
        for (arguments, part) in [
            ("--far 10.2.0.0/16", "--far without --transport"),
            ("--window 2G", "--window 2 GiB exceeds the memory of 1 GiB"),
            ("--window 1G --memory 64M", "--window 1 GiB exceeds the memory of 64 MiB"),
            (
                "--transport --far 10.2.0.0/16 --far 10.2.3.0/24",
                "10.2.0.0/16 and 10.2.3.0/24 overlap",
            ),
            ("--transport --far 127.0.0.0/8=127.0.0.1", "this machine's own address 127.0.0.1"),
        ] {
            let refusal = settings(arguments).wan_box(vec![None]).err().unwrap().to_string();
            assert!(refusal.contains(part), "{arguments}: {refusal}");
        }
        let refusal = settings("--wan-rate port").wan_box(vec![None]).err().unwrap().to_string();
        assert!(refusal.contains("--wan-rate without --transport"), "{refusal}");
        let refusal = settings("--flows 0").wan_box(vec![None]).err().unwrap().to_string();
        assert!(refusal.contains("flows_max is 0; it must lie between 1 and"), "{refusal}");
    }

    #[test]
    fn the_example_file_is_read() {
        let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../packaging/examples/accelerate.toml");
        let process = Process { config: Some(file.into()), ..Process::default() };
        let plan = plan("accelerate", SIDES, Given::default(), &process, &settings("")).unwrap();
        let [storage, compute] = &plan.pairs[..] else { panic!("{plan:?}") };
        assert_eq!(storage.settings, settings("--rate 10G --distance 1000km --memory 2G"));
        assert_eq!(compute.settings, settings("--rate 25G --distance 1000km --memory 2G"));
        // The service sets the user; the file may not.
        assert_eq!((&*storage.name, plan.user.as_deref()), ("storage", None));
    }

    #[test]
    fn the_example_file_has_every_key() {
        let text = include_str!("../../../../packaging/examples/accelerate.toml");
        let lines = || text.lines().map(|line| line.trim_start_matches("# "));
        for Key { name, .. } in Acceleration::KEYS {
            let is_shown = |line: &str| {
                line.starts_with(&format!("{name} = ")) || line == format!("[[{name}]]")
            };
            // The file sets `probe` beside its far boxes.
            assert!(lines().any(is_shown) || *name == "probe", "{name}");
        }
        assert!(text.contains("probe = true"));
    }

    #[test]
    fn a_reload_names_each_key_that_differs_and_whether_it_takes_a_restart() {
        let differences = |from: &str, to: &str| {
            let differences = settings(from).differences(&settings(to)).into_iter();
            differences.map(|one| (one.key, one.is_live)).collect::<Vec<_>>()
        };
        assert_eq!(differences("--rate 1G", "--rate 1G"), []);
        assert_eq!(
            differences("--rate 1G", "--rate 2G --mode far"),
            [("rate", true), ("mode", true)]
        );
        assert_eq!(differences("--transport --rate 1G", "--transport"), [("rate", false)]);
        assert_eq!(
            differences("", "--transport --distance 1km"),
            [("distance", false), ("transport", false)]
        );
        // The store counts tenants by the prefix length with which it was created.
        assert_eq!(differences("", "--tenant-prefix-ipv4 24"), [("tenant_prefix_ipv4", false)]);
    }

    /// A sample value of each key except `policy`, which has no flag: as flags, and as in a file.
    const SAMPLES: [(&str, &str, &str); 23] = [
        ("rate", "--rate 1G", "'1G'"),
        ("distance", "--distance 5km", "'5km'"),
        ("window", "--window 1M", "'1M'"),
        ("memory", "--memory 2G", "'2G'"),
        ("give_up", "--give-up 3s", "'3s'"),
        ("transport", "--transport", "true"),
        ("wan_rate", "--wan-rate adaptive", "'adaptive'"),
        ("key", "--key west.key", "'west.key'"),
        ("peer", PEER, "['east=CQAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=']"),
        ("psk", "--psk east=/x/psk", "['east=/x/psk']"),
        ("clear", "--clear 10.9.0.0/16 --clear fd00::/8", "['10.9.0.0/16', 'fd00::/8']"),
        ("key_optional", "--key-optional", "true"),
        ("read_ahead", "--read-ahead nvme,rpc", "['nvme', 'rpc']"),
        ("far", "--far 10.2.0.0/16=10.2.0.1", "['10.2.0.0/16=10.2.0.1']"),
        ("probe", "--probe", "true"),
        ("tenant_prefix_ipv4", "--tenant-prefix-ipv4 24", "24"),
        ("tenant_prefix_ipv6", "--tenant-prefix-ipv6 64", "64"),
        ("flows", "--flows 9", "9"),
        ("mode", "--mode tail", "'tail'"),
        ("ece", "--ece pass", "'pass'"),
        ("cores", "--cores 4-5", "'4-5'"),
        ("numa", "--numa 1", "1"),
        ("carrier", "--carrier off", "'off'"),
    ];
    const PEER: &str = "--peer east=CQAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=";

    #[test]
    fn every_setting_can_be_written_in_a_file() {
        let names: Vec<_> = Acceleration::KEYS.iter().map(|key| key.name).collect();
        let sampled: Vec<_> = SAMPLES.iter().map(|(name, ..)| *name).chain(["policy"]).collect();
        assert_eq!(sampled, names);
        for (name, flags, value) in SAMPLES {
            let of_file = toml::from_str::<Acceleration>(&format!("{name} = {value}")).unwrap();
            assert_eq!(of_file, settings(flags), "{name}");
            assert_ne!(of_file, settings(""), "{name}");
        }
        assert!(toml::from_str::<Acceleration>("memory = '1'").is_err(), "too little");
        assert!(
            toml::from_str::<Acceleration>("read_ahead = ['iser']").is_err(),
            "no such protocol"
        );
    }

    /// A reload that reports a key as changed has an effect.
    #[test]
    fn every_setting_that_changes_live_is_part_of_what_a_running_box_is_given() {
        let base = settings("--rate 10G --distance 1000km");
        let wan = ["memif:/x".parse().unwrap()];
        for (name, flags, _) in SAMPLES {
            let key = Acceleration::KEYS.iter().find(|key| key.name == name).unwrap();
            if key.changes != Changes::Restart {
                let other = settings(flags).over(&base);
                assert_ne!(other.change(&wan).unwrap(), base.change(&wan).unwrap(), "{name}");
            }
        }
    }

    #[test]
    fn reading_ahead_takes_a_whole_box() {
        let alone = settings("--read-ahead nvme").wan_box(vec![None]);
        assert!(alone.err().unwrap().to_string().contains("--read-ahead without --transport"));
        let whole = settings("--read-ahead nvme --transport").wan_box(vec![None]).unwrap();
        let config = whole.read_ahead().unwrap().config();
        assert_eq!(config.protocols, [(Protocol::Nvme, 4420)]);
        assert!(
            settings("--transport").wan_box(vec![None]).unwrap().read_ahead().is_none(),
            "off by default"
        );
    }

    #[test]
    fn far_boxes_of_a_file_are_those_of_its_pairs() {
        let text = "transport = true\n[[far]]\nprefix = '10.2.0.0/16'\nbox = \
            '192.0.2.7'\n[[far]]\nprefix = '10.3.0.0/16'";
        let made = planned(text).unwrap().wan_box(vec![None]).unwrap();
        let config = made.transport().unwrap().config();
        assert_eq!((config.far.len(), config.asks_others), (2, false));
        for (more, part) in [
            ("prefix = '10.3.4.0/24'", "FILE:10: 10.3.0.0/16 and 10.3.4.0/24 overlap"),
            ("prefix = 'here'", "FILE:11: prefix: 'here' is no address prefix"),
            ("box = '192.0.2.7'", "FILE:10: [[far]]: missing field `prefix`"),
            ("prefix = '::/0'\nbox = 'east'", "FILE:12: box: invalid IP address"),
            ("prefix = '::/0'\nbax = '::1'", "FILE:12: [[far]] has no key 'bax'; did you mean"),
        ] {
            let refusal = planned(&format!("{text}\n[[far]]\n{more}")).unwrap_err();
            assert!(refusal.starts_with(part), "{refusal}");
        }
    }

    /// The settings of a file with one pair and `text`, or the refusal.
    fn planned(text: &str) -> Result<Acceleration, String> {
        let name = format!("longhaul-policy-{}-{:x}.toml", std::process::id(), random_seed());
        let path = std::env::temp_dir().join(name);
        std::fs::write(&path, format!("[[pair]]\nlan = 'eth1'\nwan = 'eth2'\n{text}")).unwrap();
        let process = Process { config: Some(path.clone()), ..Process::default() };
        let made = plan("accelerate", SIDES, Given::default(), &process, &settings(""));
        std::fs::remove_file(&path).unwrap();
        let pairs =
            made.map_err(|e| e.to_string().replace(&path.display().to_string(), "FILE"))?.pairs;
        Ok(pairs[0].settings.clone())
    }

    #[test]
    fn rules_of_a_file_go_before_the_mode() {
        let text = "mode = 'far'\n[[policy]]\nsource = '10.1.0.0/16'\nqpn = '100-200'\nmode = \
            'tail'\n\
                    [[policy]]\ndestination = 'fd00::1'\ndscp = 26\nqpn = 17\nmode = 'off'";
        let made = planned(text).unwrap().wan_box(vec![None]).unwrap();
        let accelerator = made.near();
        assert_eq!(
            accelerator.config().policy.to_string(),
            "source 10.1.0.0/16 qpn 100-200 mode tail; destination fd00::1/128 qpn 17-17 dscp 26 \
             mode off; default far"
        );
    }

    #[test]
    fn rules_that_cannot_be_are_refused_with_their_line() {
        let rule = "[[policy]]\nsource = '10.0.0.0/8'\nmode = 'off'\n";
        for (text, part) in [
            (
                format!("{rule}[[policy]]\nmode = 'fast'\ndscp = 1"),
                "FILE:8: mode: 'fast' is no mode: say early, far",
            ),
            (
                format!("{rule}[[policy]]\nsource = '10.1.0.0/16'\nmode = 'tail'"),
                "FILE:7: policy rule 2: it says 'tail', but rule 1",
            ),
            (
                "[[policy]]\nsource = 'here'\nmode = 'off'".into(),
                "FILE:5: source: 'here' is no address prefix",
            ),
            (
                "[[policy]]\nsauce = '10.0.0.1'\nmode = 'off'".into(),
                "FILE:5: [[policy]] has no key 'sauce'; did you mean 'source'?",
            ),
            ("[[policy]]\ndscp = 1".into(), "FILE:4: [[policy]]: missing field `mode`"),
            ("[[policy]]\nqpn = 'all'\nmode = 'off'".into(), "FILE:5: qpn: write a number"),
            ("[[policy]]\nqpn = -1\nmode = 'off'".into(), "FILE:5: qpn: write a number"),
            ("[[policy]]\ndscp = 300\nmode = 'off'".into(), "FILE:5: dscp: "),
            ("[policy]\nmode = 'off'".into(), "FILE:4: write [[policy]]"),
            (
                "mode = 'fast'".into(),
                "FILE:4: mode: 'fast' is no mode: say early, far, tail or off",
            ),
        ] {
            let refusal = planned(&text).unwrap_err();
            assert!(refusal.starts_with("FILE") && refusal.contains(part), "{text}: {refusal}");
        }
    }
}
