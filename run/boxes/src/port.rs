//! Ports of a box: names, opening, recording.

mod take_over;

use crate::error::Cause;
use crate::journal;
use crate::privileges::Privileges;
use crate::xdp::{Xdp, XdpNameError};
use longhaul_af_xdp::{XdpCounters, XdpPort};
use longhaul_host::{CorePort, HandedOver, Spread};
use longhaul_memif::{MemifConfig, MemifPort};
use longhaul_netdev::{
    FrameSubset, NetdevCounters, PacketConfig, PacketPort, PreferredQps, TapConfig, interface,
};
use longhaul_port::capture::{CaptureConfig, CapturingPort};
use longhaul_port::circuit::{
    Circuit, CircuitPort, ETHERTYPE_EXPERIMENTAL, ETHERTYPE_MIN, VLAN_MAX,
};
use longhaul_port::{NullPort, Port, forward_port};
use serde::Deserialize;
use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::num::NonZeroUsize;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use thiserror::Error;

/// Maximum frame of an interface's port, in bytes: near the limit of links and accelerators, and
/// above the MTU of any interface except loopback.
const INTERFACE_FRAME_BYTES_MAX: usize = 16 << 10;

/// Maximum frame of a memif port, and by default of a DPDK port, in bytes: an MTU of 9216 with two
/// VLAN tags. A memif slave allocates 4096 such buffers.
const JUMBO_FRAME_BYTES_MAX: usize = 9216 + 22;

/// Id of the memif interface that a box attaches to.
const MEMIF_ID: u32 = 0;

/// Why a port cannot be used.
#[derive(Debug, Error)]
pub enum PortError {
    /// It cannot be opened.
    #[error("cannot open port {port}: {error}")]
    Open {
        /// The port.
        port: PortName,
        /// The cause.
        error: Cause,
    },
    /// Another box has its interface.
    #[error("cannot open port {port}: {holder} has it")]
    InUse {
        /// The port.
        port: PortName,
        /// The box, by name and PID.
        holder: String,
    },
    /// A DPDK port, in a build without DPDK.
    #[error("cannot open port dpdk:{0}: this longhaul was built without DPDK")]
    NoDpdk(String),
    /// The port has one queue, but several cores.
    #[error("{count} cores cannot share port {port}: {why}")]
    OneQueue {
        /// Number of cores.
        count: NonZeroUsize,
        /// The port.
        port: PortName,
        /// The reason.
        why: &'static str,
    },
    /// The port cannot be recorded.
    #[error("cannot record to {}: {error}", path.display())]
    Record {
        /// The capture file.
        path: PathBuf,
        /// The error of the operating system.
        error: io::Error,
    },
}

/// A port in a user's notation.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub enum PortName {
    /// `eth1`: an existing interface.
    Interface(String),
    /// `tap:NAME`: a TAP device.
    Tap(String),
    /// `xdp:INTERFACE[,OPTION…]`: an existing interface, through AF_XDP.
    Xdp(Xdp),
    /// `memif:PATH[,master|slave]`: shared memory.
    Memif {
        /// The socket.
        path: PathBuf,
        /// True if this end is the master, which creates the socket.
        is_master: bool,
    },
    /// `ethernet:INTERFACE,MAC[@VLAN][,ETHERTYPE]`: a layer-2 circuit to the station with this
    /// address.
    Ethernet {
        /// The local interface.
        interface: String,
        /// The station's address.
        peer: [u8; 6],
        /// VLAN of the circuit.
        vlan: Option<u16>,
        /// EtherType of its frames.
        ethertype: u16,
    },
    /// `dpdk:DEVICE[,ARGUMENT=VALUE…]`: a DPDK device.
    Dpdk {
        /// The device with its arguments.
        devargs: String,
    },
}

/// Options of DPDK ports.
#[derive(Clone, Debug, Default, PartialEq, Eq, clap::Args, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Dpdk {
    /// Arguments of DPDK's EAL for dpdk: ports, as '--no-huge -m 1024' [default: huge pages, no
    /// other arguments]
    #[arg(long = "dpdk-eal", value_name = "ARGUMENTS", allow_hyphen_values = true)]
    pub eal: Option<String>,
    /// MTU that each dpdk: port must support, in bytes [default: the device's maximum, up to 9216]
    #[arg(long = "dpdk-mtu", value_name = "BYTES")]
    pub mtu: Option<u16>,
    /// Receive queues per dpdk: port, over which its device spreads flows [default: 1]
    #[arg(long = "dpdk-queues", value_name = "N")]
    pub queues: Option<u16>,
    /// Spreading of frames over the queues of a dpdk: port's device [default: addresses]
    #[arg(long = "dpdk-spread", value_name = "HOW")]
    pub spread: Option<DpdkSpread>,
    /// Maximum received frames per dpdk: port that the box keeps in DPDK's memory; it copies
    /// further ones [default: 4096]
    #[arg(long = "dpdk-lent", value_name = "FRAMES")]
    pub lent: Option<u16>,
}

/// How a device spreads frames over its queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DpdkSpread {
    /// Spread by the pair of IP addresses, alike for both directions; fail if the device cannot
    Addresses,
    /// Spread by the device's default
    Device,
}

impl Dpdk {
    /// These options, completed with those of lower precedence, `below`.
    pub fn over(&self, below: Dpdk) -> Dpdk {
        Dpdk {
            eal: self.eal.clone().or(below.eal),
            mtu: self.mtu.or(below.mtu),
            queues: self.queues.or(below.queues),
            spread: self.spread.or(below.spread),
            lent: self.lent.or(below.lent),
        }
    }

    /// Opens `count` queues of the device, one per core.
    #[cfg(feature = "dpdk")]
    fn open(&self, devargs: &str, count: NonZeroUsize) -> Result<Vec<BoxPort>, PortError> {
        use longhaul_dpdk::{DpdkConfig, Spread, eal, open_queues};
        let mut config = DpdkConfig { mtu: self.mtu, ..DpdkConfig::new(devargs) };
        config.rx_queues = self.queues.unwrap_or(config.rx_queues);
        config.lent_frames = self.lent.unwrap_or(config.lent_frames);
        config.spread = match self.spread {
            Some(DpdkSpread::Device) => Spread::ByDevice,
            Some(DpdkSpread::Addresses) | None => Spread::ByAddresses,
        };
        let queues = eal::start(self.eal.as_deref().unwrap_or_default())
            .and_then(|()| open_queues(&config, count))
            .map_err(|e| PortError::Open {
                port: PortName::Dpdk { devargs: devargs.to_string() },
                error: e.into(),
            })?;
        Ok(queues.into_iter().map(|port| BoxPort::Dpdk(Box::new(port))).collect())
    }

    #[cfg(not(feature = "dpdk"))]
    fn open(&self, devargs: &str, _count: NonZeroUsize) -> Result<Vec<BoxPort>, PortError> {
        Err(PortError::NoDpdk(devargs.to_string()))
    }
}

/// How the ports of a pair are opened.
#[derive(Clone, Copy, Debug)]
pub struct Opening {
    /// Number of cores that share them.
    pub count: NonZeroUsize,
    /// How frames map to cores.
    pub spread: Spread,
    /// True if ports that can record arrival times must do so.
    pub stamps: bool,
}

impl PortName {
    /// Help text about port names.
    pub const HELP: &str = "\
PORT is one of
  eth1                       an existing interface
  xdp:eth1[,OPTION...]       the same through AF_XDP, at a lower cost per frame
  tap:NAME                   a TAP device, created if missing
  memif:PATH[,master|slave]  shared memory
  dpdk:DEVICE                a device with arguments of its driver (dpdk:0000:3b:00.0), if longhaul
                             was built with DPDK
  ethernet:INTERFACE,MAC[@VLAN][,ETHERTYPE]
                             a layer-2 circuit between two stations: all frames go to MAC, the
                             address of the port at the far end, with that EtherType (0x88b5)
Give interfaces no addresses, and set their MTU to the hosts'.";

    /// True if the two cannot be open at the same time.
    pub fn is_same_as(&self, other: &PortName) -> bool {
        use PortName::{Dpdk, Memif};
        match (self, other) {
            (Memif { path: one, .. }, Memif { path: another, .. }) => one == another,
            (Dpdk { devargs: one }, Dpdk { devargs: another }) => {
                one.split(',').next() == another.split(',').next()
            }
            (one, another) => one.interface().is_some() && one.interface() == another.interface(),
        }
    }

    /// The port's network interface.
    pub fn interface(&self) -> Option<&str> {
        match self {
            PortName::Interface(name) | PortName::Tap(name) => Some(name),
            PortName::Ethernet { interface, .. } | PortName::Xdp(Xdp { interface, .. }) => {
                Some(interface)
            }
            PortName::Memif { .. } | PortName::Dpdk { .. } => None,
        }
    }

    /// Maximum length of a received frame, in bytes.
    pub fn frame_bytes_max(&self) -> usize {
        match self {
            PortName::Interface(_)
            | PortName::Tap(_)
            | PortName::Ethernet { .. }
            | PortName::Xdp(_) => INTERFACE_FRAME_BYTES_MAX,
            PortName::Memif { .. } | PortName::Dpdk { .. } => JUMBO_FRAME_BYTES_MAX,
        }
    }

    /// Checks whether `count` cores, more than one, can share the port.
    ///
    /// # Errors
    /// The reason for a refusal, and the cure.
    pub fn check_queues(&self, count: NonZeroUsize, spread: Spread) -> Result<(), PortError> {
        let why = match self {
            PortName::Interface(_) | PortName::Ethernet { .. } | PortName::Xdp(_) => return Ok(()),
            PortName::Dpdk { .. } if spread != Spread::BySide => return Ok(()),
            PortName::Tap(_) => "a TAP device has one queue here",
            PortName::Memif { .. } => "shared memory has one queue here",
            PortName::Dpdk { .. } => "the queues of a device do not keep frames in order",
        };
        Err(PortError::OneQueue { count, port: self.clone(), why })
    }

    /// True if the device maps an address pair to the same core as other such devices do.
    /// Indirection tables of different lengths agree on the queue if all lengths, and the number of
    /// queues, are powers of two.
    pub fn spreads_by_addresses(&self, dpdk: &Dpdk, cores: NonZeroUsize) -> bool {
        let queues = cores.get() * usize::from(dpdk.queues.unwrap_or(1));
        matches!(self, PortName::Dpdk { .. })
            && dpdk.spread != Some(DpdkSpread::Device)
            && queues.is_power_of_two()
    }

    /// Opens the port for one thread, with the defaults of DPDK's devices.
    ///
    /// # Errors
    /// The port does not exist, is in use, or needs privileges.
    pub fn open(&self) -> Result<impl Port + use<>, PortError> {
        let opening = Opening { count: NonZeroUsize::MIN, spread: Spread::ByPair, stamps: true };
        let ports = self.open_queues(&Dpdk::default(), 0, opening)?;
        // One core has one queue.
        ports
            .into_iter()
            .next()
            .ok_or_else(|| PortError::Open { port: self.clone(), error: "it has no queue".into() })
    }

    /// Opens one queue of the port per core.
    pub fn open_queues(
        &self,
        dpdk: &Dpdk,
        side: usize,
        opening: Opening,
    ) -> Result<Vec<BoxPort>, PortError> {
        if opening.count > NonZeroUsize::MIN {
            self.check_queues(opening.count, opening.spread)?;
        }
        let refused = |error: Cause| PortError::Open { port: self.clone(), error };
        let frame_bytes_max = self.frame_bytes_max();
        let whole = match self {
            PortName::Interface(name) | PortName::Ethernet { interface: name, .. } => {
                return self.open_sockets(name, side, opening);
            }
            PortName::Dpdk { devargs } => return dpdk.open(devargs, opening.count),
            PortName::Xdp(xdp) => {
                let queues = XdpPort::open_queues(&xdp.config(frame_bytes_max), opening.count);
                let queues = queues.map_err(|e| refused(e.into()))?;
                return Ok(queues.into_iter().map(|port| BoxPort::Xdp(Box::new(port))).collect());
            }
            PortName::Tap(name) => longhaul_netdev::TapPort::open(&self.tap_config(name))
                .map(BoxPort::Tap)
                .map_err(|e| refused(e.into())),
            PortName::Memif { path, is_master } => {
                let config = MemifConfig { frame_bytes_max, ..MemifConfig::new("longhaul-box") };
                let opened = match is_master {
                    true => MemifPort::master(path, MEMIF_ID, config),
                    false => MemifPort::slave(path, MEMIF_ID, config),
                };
                opened.map(BoxPort::Memif).map_err(|e| refused(e.into()))
            }
        };
        whole.map(|port| vec![port])
    }

    /// Opens packet sockets at the port's interface, one per core.
    fn open_sockets(
        &self,
        interface: &str,
        side: usize,
        opening: Opening,
    ) -> Result<Vec<BoxPort>, PortError> {
        let queues = self.socket_configs(interface, side, opening);
        let queues = queues.iter().map(|config| {
            PacketPort::open(config)
                .map_err(|e| PortError::Open { port: self.clone(), error: e.into() })
        });
        queues.map(|queue| self.around(queue?)).collect()
    }

    fn tap_config(&self, name: &str) -> TapConfig {
        TapConfig { frame_bytes_max: self.frame_bytes_max(), ..TapConfig::new(name) }
    }

    /// Configurations of packet sockets at the port's interface, one per core.
    fn socket_configs(&self, interface: &str, side: usize, opening: Opening) -> Vec<PacketConfig> {
        let Opening { count, spread, stamps } = opening;
        let frame_bytes_max = self.frame_bytes_max();
        // A fibre keeps all frames in order and needs their arrival times. An accelerator may serve
        // known flows first.
        let by_class = !stamps;
        let config =
            PacketConfig { frame_bytes_max, stamps, by_class, ..PacketConfig::new(interface) };
        match spread {
            Spread::BySide if count > NonZeroUsize::MIN => (0..count.get())
                .map(|core| {
                    let part =
                        if side % count == core { FrameSubset::All } else { FrameSubset::Nothing };
                    PacketConfig { part, ..config.clone() }
                })
                .collect(),
            _ => config.of_queues(count),
        }
    }

    /// Wraps a packet socket's port.
    fn around(&self, port: PacketPort) -> Result<BoxPort, PortError> {
        let PortName::Ethernet { interface: name, peer, vlan, ethertype } = self else {
            return Ok(BoxPort::Packet(port));
        };
        let refused = |error: Cause| PortError::Open { port: self.clone(), error };
        let own = interface::mac(name).map_err(|e| refused(e.into()))?;
        if own == *peer {
            let why =
                format!("{} is the interface's own address: name the far station's", Mac(own));
            return Err(refused(why.into()));
        }
        let circuit = Circuit { own, peer: *peer, vlan: *vlan, ethertype: *ethertype };
        Ok(BoxPort::Circuit(CircuitPort::new(port, circuit)))
    }
}

impl fmt::Display for PortName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PortName::Interface(name) => f.write_str(name),
            PortName::Tap(name) => write!(f, "tap:{name}"),
            PortName::Xdp(xdp) => xdp.fmt(f),
            PortName::Dpdk { devargs } => write!(f, "dpdk:{devargs}"),
            PortName::Memif { path, is_master } => {
                write!(
                    f,
                    "memif:{},{}",
                    path.display(),
                    if *is_master { "master" } else { "slave" }
                )
            }
            PortName::Ethernet { interface, peer, vlan, ethertype } => {
                write!(f, "ethernet:{interface},{}", Mac(*peer))?;
                if let Some(vlan) = vlan {
                    write!(f, "@{vlan}")?;
                }
                if *ethertype != ETHERTYPE_EXPERIMENTAL {
                    write!(f, ",{ethertype:#06x}")?;
                }
                Ok(())
            }
        }
    }
}

/// Why a text is not a port.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum PortNameError {
    /// The form is unknown.
    #[error(
        "not a port: write eth1, xdp:INTERFACE[,OPTION...], tap:NAME, memif:PATH[,master|slave], \
         dpdk:DEVICE or ethernet:INTERFACE,MAC[@VLAN][,ETHERTYPE]"
    )]
    NoPort,
    /// It is not a valid AF_XDP port.
    #[error(transparent)]
    Xdp(#[from] XdpNameError),
    /// The role of a memif port is unknown.
    #[error("a memif port is master or slave")]
    MemifRole,
    /// It is not a valid circuit.
    #[error(
        "a circuit is ethernet:INTERFACE,MAC[@VLAN][,ETHERTYPE], as in \
         ethernet:eth2,02:00:00:00:00:07@100"
    )]
    NoCircuit,
    /// The VLAN is out of range.
    #[error("'{0}' is no VLAN: they go from 1 to {VLAN_MAX}")]
    Vlan(String),
    /// Another protocol uses this EtherType.
    #[error("'{0}' is no EtherType for a circuit: write an unused one, as 0x88b5")]
    Ethertype(String),
    /// The Ethernet address is a group's, or zero.
    #[error("{0} is no address of one station")]
    NoStation(String),
    /// The Ethernet address cannot be parsed.
    #[error("'{0}' is no Ethernet address, as 02:00:00:00:00:07 is")]
    NoMac(String),
}

impl FromStr for PortName {
    type Err = PortNameError;

    fn from_str(text: &str) -> Result<Self, PortNameError> {
        let wrong = || PortNameError::NoPort;
        match text.split_once(':') {
            None if text.is_empty() || text.contains(['/', ' ']) => Err(wrong()),
            None => Ok(PortName::Interface(text.to_string())),
            Some((_, "")) => Err(wrong()),
            Some(("dpdk", devargs)) if devargs.starts_with(',') || devargs.contains(' ') => {
                Err(wrong())
            }
            Some(("dpdk", devargs)) => Ok(PortName::Dpdk { devargs: devargs.to_string() }),
            Some(("ethernet", rest)) => circuit(rest),
            Some(("xdp", rest)) => Ok(PortName::Xdp(rest.parse()?)),
            Some(("tap", name)) => Ok(PortName::Tap(name.to_string())),
            Some(("memif", rest)) => {
                let (path, is_master) = match rest.rsplit_once(',') {
                    Some((path, "master")) => (path, true),
                    Some((path, "slave")) => (path, false),
                    Some(_) => return Err(PortNameError::MemifRole),
                    None => (rest, false),
                };
                if path.is_empty() {
                    return Err(wrong());
                }
                Ok(PortName::Memif { path: path.into(), is_master })
            }
            Some(_) => Err(wrong()),
        }
    }
}

/// Parses `INTERFACE,MAC[@VLAN][,ETHERTYPE]`.
fn circuit(text: &str) -> Result<PortName, PortNameError> {
    let mut parts = text.split(',');
    let (interface, station) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
    let ethertype = parts.next();
    if interface.is_empty() || interface.contains(['/', ' ', ':']) || parts.next().is_some() {
        return Err(PortNameError::NoCircuit);
    }
    let (mac, vlan) =
        station.split_once('@').map_or((station, None), |(mac, vlan)| (mac, Some(vlan)));
    let vlan = vlan.map(|vlan| {
        let number = vlan.parse::<u16>().ok().filter(|number| (1..=VLAN_MAX).contains(number));
        number.ok_or_else(|| PortNameError::Vlan(vlan.to_string()))
    });
    let ethertype = ethertype.map_or(Ok(ETHERTYPE_EXPERIMENTAL), |text| {
        let number =
            text.strip_prefix("0x").and_then(|digits| u16::from_str_radix(digits, 16).ok());
        let number = number.filter(|number| *number >= ETHERTYPE_MIN && !TAKEN.contains(number));
        number.ok_or_else(|| PortNameError::Ethertype(text.to_string()))
    })?;
    Ok(PortName::Ethernet {
        interface: interface.to_string(),
        peer: mac_of(mac)?,
        vlan: vlan.transpose()?,
        ethertype,
    })
}

/// EtherTypes that other traffic on circuits uses: IPv4, ARP, VLAN tags, IPv6, pause frames, LLDP.
const TAKEN: [u16; 8] = [0x0800, 0x0806, 0x8100, 0x88a8, 0x9100, 0x86dd, 0x8808, 0x88cc];

fn mac_of(text: &str) -> Result<[u8; 6], PortNameError> {
    let mut mac = [0; 6];
    let mut bytes = text.split(':');
    let is_read = mac.iter_mut().all(|byte| {
        let read = bytes
            .next()
            .filter(|digits| {
                digits.len() == 2 && digits.bytes().all(|digit| digit.is_ascii_hexdigit())
            })
            .and_then(|digits| u8::from_str_radix(digits, 16).ok());
        read.map(|read| *byte = read).is_some()
    });
    match (is_read && bytes.next().is_none(), mac[0] & 1) {
        (true, 0) if mac != [0; 6] => Ok(mac),
        (true, _) => Err(PortNameError::NoStation(text.to_string())),
        (false, _) => Err(PortNameError::NoMac(text.to_string())),
    }
}

/// Formats an Ethernet address.
struct Mac([u8; 6]);

impl fmt::Display for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, last] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{last:02x}")
    }
}

impl TryFrom<String> for PortName {
    type Error = PortNameError;

    fn try_from(text: String) -> Result<Self, PortNameError> {
        text.parse()
    }
}

/// A port of any kind.
pub enum BoxPort {
    Packet(PacketPort),
    Tap(longhaul_netdev::TapPort),
    Xdp(Box<XdpPort>),
    Memif(MemifPort),
    #[cfg(feature = "dpdk")]
    Dpdk(Box<longhaul_dpdk::DpdkPort>),
    Circuit(CircuitPort<PacketPort>),
    Recorded(Box<CapturingPort<BoxPort, Recording>>),
    /// One core's queue of a port.
    Shared(Box<CorePort<BoxPort>>),
    /// Another process has it.
    Gone(NullPort),
}

impl BoxPort {
    /// Records the frames of a port's queues, in both directions, to a capture file at `path`: at
    /// most `frames`, 0 for no limit.
    pub fn recorded(
        queues: Vec<Self>,
        path: &Path,
        frames: u64,
        privileges: &Privileges,
    ) -> Result<Vec<Self>, PortError> {
        let config =
            CaptureConfig { frames_max: (frames > 0).then_some(frames), ..Default::default() };
        let recorded = Recording::create(path, privileges)
            .and_then(|recording| CapturingPort::sharing(queues, recording, config))
            .map_err(|error| PortError::Record { path: path.to_owned(), error })?;
        Ok(recorded.into_iter().map(|port| BoxPort::Recorded(Box::new(port))).collect())
    }

    /// Makes the port serve packets to these QPs before all other frames, if it can.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn prefer(&mut self, qps: &PreferredQps) -> std::io::Result<()> {
        match self {
            BoxPort::Packet(port) => port.prefer(qps),
            BoxPort::Recorded(port) => port.inner_mut().prefer(qps),
            BoxPort::Shared(port) => port.queue_mut().prefer(qps),
            _ => Ok(()),
        }
    }

    /// Counters that only interface ports have.
    pub fn netdev_counters(&self) -> Option<NetdevCounters> {
        match self {
            BoxPort::Packet(port) => Some(port.netdev_counters()),
            BoxPort::Tap(port) => Some(port.netdev_counters()),
            BoxPort::Memif(_) | BoxPort::Xdp(_) | BoxPort::Gone(_) => None,
            #[cfg(feature = "dpdk")]
            BoxPort::Dpdk(_) => None,
            BoxPort::Circuit(port) => Some(port.inner().netdev_counters()),
            BoxPort::Recorded(port) => port.inner().netdev_counters(),
            BoxPort::Shared(port) => port.queue().netdev_counters(),
        }
    }

    /// Counters that only AF_XDP ports have.
    pub fn xdp_counters(&self) -> Option<XdpCounters> {
        match self {
            BoxPort::Xdp(port) => Some(port.xdp_counters()),
            BoxPort::Recorded(port) => port.inner().xdp_counters(),
            BoxPort::Shared(port) => port.queue().xdp_counters(),
            _ => None,
        }
    }

    /// How the port is attached, if there are several ways.
    pub fn manner(&self) -> Option<String> {
        match self {
            BoxPort::Xdp(port) => Some(port.manner().to_string()),
            BoxPort::Recorded(port) => port.inner().manner(),
            BoxPort::Shared(port) => port.queue().manner(),
            _ => None,
        }
    }

    /// Counters that only DPDK ports have.
    #[cfg(feature = "dpdk")]
    pub fn dpdk_counters(&self) -> Option<longhaul_dpdk::DpdkCounters> {
        match self {
            BoxPort::Dpdk(port) => Some(port.dpdk_counters()),
            BoxPort::Recorded(port) => port.inner().dpdk_counters(),
            BoxPort::Shared(port) => port.queue().dpdk_counters(),
            _ => None,
        }
    }

    /// Frames on a circuit from other stations.
    pub fn foreign(&self) -> Option<u64> {
        match self {
            BoxPort::Circuit(port) => Some(port.foreign()),
            BoxPort::Recorded(port) => port.inner().foreign(),
            BoxPort::Shared(port) => port.queue().foreign(),
            _ => None,
        }
    }

    /// Counters of frames handed over to other cores, if several share the port.
    pub fn handed_over(&self) -> Option<HandedOver> {
        match self {
            BoxPort::Shared(port) => Some(port.handed_over()),
            BoxPort::Recorded(port) => port.inner().handed_over(),
            _ => None,
        }
    }
}

/// MTU of a port, in bytes, at this moment; `None` if it has none or it is unknown. On a circuit,
/// the carried frame's Ethernet header and tag are payload.
pub fn mtu(name: &PortName) -> Option<u32> {
    let mtu = interface::mtu(name.interface()?).ok()?;
    let is_circuit = matches!(name, PortName::Ethernet { .. });
    Some(if is_circuit { mtu.saturating_sub(18) } else { mtu })
}

macro_rules! each_kind {
    ($self:ident, $port:ident => $call:expr) => {
        match $self {
            BoxPort::Packet($port) => $call,
            BoxPort::Tap($port) => $call,
            BoxPort::Xdp($port) => $call,
            BoxPort::Memif($port) => $call,
            #[cfg(feature = "dpdk")]
            BoxPort::Dpdk($port) => $call,
            BoxPort::Circuit($port) => $call,
            BoxPort::Recorded($port) => $call,
            BoxPort::Shared($port) => $call,
            BoxPort::Gone($port) => $call,
        }
    };
}

impl Port for BoxPort {
    forward_port!(|self| each_kind! => receive, receive_lent, transmit_room, transmit);
    forward_port!(|self| each_kind! => transmit_pieces, transmit_lent, flush, arm, disarm);
    forward_port!(|self| each_kind! => descriptors, service, set_link, link_state);
    forward_port!(|self| each_kind! => last_disconnect, capabilities, counters);
    forward_port!(|self| each_kind! => is_at_rest, hand_over, give_away, take_charge);
}

/// A capture file. Its first error is logged and ends the recording.
pub struct Recording {
    file: File,
    path: PathBuf,
}

impl Recording {
    /// Creates the file so that no other user can read it, and does not follow links.
    fn create(path: &Path, privileges: &Privileges) -> io::Result<Self> {
        let mut how = OpenOptions::new();
        how.write(true).create(true).truncate(true).mode(0o600).custom_flags(libc::O_NOFOLLOW);
        let file = how.open(path)?;
        privileges.hand_over_file(&file)?;
        Ok(Recording { file, path: path.to_owned() })
    }
}

impl Write for Recording {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.file.write(bytes);
        if let Err(error) = &written
            && error.kind() != io::ErrorKind::Interrupted
        {
            journal::warn(&format!("the recording to {} ends: {error}", self.path.display()));
        }
        written
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, symlink};

    #[test]
    fn devices_decide_where_their_tables_name_the_same_queue() {
        let port: PortName = "dpdk:0000:3b:00.0".parse().unwrap();
        let decides = |cores, queues, spread| {
            let dpdk = Dpdk { queues, spread, ..Dpdk::default() };
            port.spreads_by_addresses(&dpdk, NonZeroUsize::new(cores).unwrap())
        };
        assert!(decides(4, None, None) && decides(2, Some(4), Some(DpdkSpread::Addresses)));
        assert!(!decides(3, None, None) && !decides(2, Some(3), None));
        assert!(!decides(4, None, Some(DpdkSpread::Device)));
        let other: PortName = "eth1".parse().unwrap();
        assert!(!other.spreads_by_addresses(&Dpdk::default(), NonZeroUsize::MIN));
    }

    #[test]
    fn queues_are_for_ports_that_have_several() {
        let refusal = |text: &str, spread| {
            let port: PortName = text.parse().unwrap();
            port.check_queues(NonZeroUsize::new(2).unwrap(), spread).err().map(|e| e.to_string())
        };
        for text in ["eth1", "ethernet:eth2,02:00:00:00:00:07", "xdp:eth1"] {
            assert_eq!(
                (refusal(text, Spread::ByPair), refusal(text, Spread::BySide)),
                (None, None)
            );
        }
        assert_eq!(refusal("dpdk:net_null0", Spread::ByPair), None);
        for text in ["tap:lh0", "memif:/run/a.sock", "dpdk:net_null0"] {
            let why = refusal(text, Spread::BySide).unwrap();
            assert!(why.starts_with("2 cores cannot share port") && why.contains(text), "{why}");
        }
    }

    #[test]
    fn ports_are_interfaces_taps_memif_sockets_and_devices_of_dpdk() {
        for (text, port) in [
            ("eth1", PortName::Interface("eth1".into())),
            ("tap:lh0", PortName::Tap("lh0".into())),
            ("memif:/run/a.sock", PortName::Memif { path: "/run/a.sock".into(), is_master: false }),
            ("dpdk:0000:3b:00.0", PortName::Dpdk { devargs: "0000:3b:00.0".into() }),
            ("dpdk:net_null0,size=9000", PortName::Dpdk { devargs: "net_null0,size=9000".into() }),
            ("memif:/run/a,b,master", PortName::Memif { path: "/run/a,b".into(), is_master: true }),
        ] {
            assert_eq!(text.parse(), Ok(port.clone()));
            assert_eq!(port.to_string().parse(), Ok(port));
        }
        let circuit = |vlan, ethertype| PortName::Ethernet {
            interface: "eth2".into(),
            peer: [2, 0, 0, 0, 0, 7],
            vlan,
            ethertype,
        };
        for (text, port) in [
            ("ethernet:eth2,02:00:00:00:00:07", circuit(None, 0x88b5)),
            ("ethernet:eth2,02:00:00:00:00:07@100", circuit(Some(100), 0x88b5)),
            ("ethernet:eth2,02:00:00:00:00:07@4094,0x88b6", circuit(Some(4094), 0x88b6)),
        ] {
            assert_eq!(text.parse(), Ok(port.clone()));
            assert_eq!(port.to_string(), text);
            assert!(port.is_same_as(&PortName::Interface("eth2".into())));
        }
        for (text, part) in [
            ("ethernet:02:00:00:00:00:07", "a circuit is ethernet:INTERFACE,MAC"),
            ("ethernet:eth2", "'' is no Ethernet address"),
            ("ethernet:eth2,02:00:00:00:00", "is no Ethernet address"),
            ("ethernet:eth2,+2:00:00:00:00:07", "is no Ethernet address"),
            ("ethernet:eth2,ff:ff:ff:ff:ff:ff", "no address of one station"),
            ("ethernet:eth2,02:00:00:00:00:07@0", "'0' is no VLAN"),
            ("ethernet:eth2,02:00:00:00:00:07@4095", "'4095' is no VLAN"),
            ("ethernet:eth2,02:00:00:00:00:07,0x0800", "no EtherType for a circuit"),
            ("ethernet:eth2,02:00:00:00:00:07,34997", "no EtherType for a circuit"),
            ("ethernet:eth2,02:00:00:00:00:07,0x88b5,x", "a circuit is"),
        ] {
            let refusal = text.parse::<PortName>().unwrap_err().to_string();
            assert!(refusal.contains(part), "{text}: {refusal}");
        }
        for text in [
            "",
            "tap:",
            "memif:",
            "memif:,slave",
            "memif:/a,server",
            "dpdk:",
            "dpdk:,x=1",
            "/dev/net",
            "eth 1",
        ] {
            assert!(text.parse::<PortName>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_recording_is_its_users_alone_and_follows_no_link() {
        let path = std::env::temp_dir().join(format!("longhaul-recording-{}", std::process::id()));
        let link = path.with_extension("link");
        drop(Recording::create(&path, &Privileges::Keep).unwrap());
        let mode = path.metadata().unwrap().permissions().mode();
        symlink(&path, &link).unwrap();
        let refused =
            Recording::create(&link, &Privileges::Keep).err().and_then(|e| e.raw_os_error());
        std::fs::remove_file(&path).unwrap();
        std::fs::remove_file(&link).unwrap();
        assert_eq!((mode & 0o777, refused), (0o600, Some(libc::ELOOP)));
    }

    #[test]
    fn one_interface_is_one_port_whatever_it_is_called() {
        let port = |text: &str| text.parse::<PortName>().unwrap();
        assert!(port("lh0").is_same_as(&port("tap:lh0")));
        assert!(port("memif:/a,master").is_same_as(&port("memif:/a")));
        assert!(port("xdp:eth1,generic").is_same_as(&port("eth1")));
        assert!(!port("eth1").is_same_as(&port("eth2")));
        assert!(!port("eth1").is_same_as(&port("memif:eth1")));
        assert!(port("dpdk:net_null0").is_same_as(&port("dpdk:net_null0,size=64")));
    }
}
