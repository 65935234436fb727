//! An Ethernet segment on this machine: a bridge, a guest's cable, and several ports for our
//! device.

use super::{End, Family, MTU};
use crate::guest::Tap;
use crate::{Program, RuntimeDir, longhaul};
use std::path::Path;
use std::process::Command;

/// Name prefixes of bridges and veth devices.
const PREFIXES: [&str; 2] = ["lhb", "lhv"];
/// The VLAN of [`Port::TaggedTap`].
const VLAN: u16 = 7;
/// Value of `arp_ignore`: no replies for local addresses.
const ARP_REPLY_TO_NONE: &str = "8";

/// Port of our device on the segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Port {
    /// A UDP socket of this machine, with the bridge's address.
    Udp,
    /// A TAP device with its own address.
    Tap,
    /// A TAP device in a VLAN.
    TaggedTap,
    /// A veth device through AF_PACKET, with its own address.
    Interface,
    /// The bridge through AF_PACKET, with this machine's address.
    SharedInterface,
}

/// The segment. Its networks are specific to this process, so that tests can run concurrently.
pub struct Segment {
    bridge: String,
    /// The guest's cable.
    cable: Tap,
    /// Our device's TAP.
    tap: Tap,
    /// The other end of this veth is on the bridge.
    veth: String,
    /// Both ends of a cable between a fibre and the bridge.
    patch: [String; 2],
}

impl Segment {
    /// Creates the segment. `tag`, of at most 3 letters, distinguishes it within this process.
    ///
    /// # Errors
    /// If this user lacks the privileges, or the kernel a feature.
    ///
    /// # Panics
    /// When iproute2 is missing.
    pub fn new(tag: &str) -> Result<Self, String> {
        remove_abandoned();
        let id = std::process::id();
        let segment = Segment {
            bridge: format!("lhb{tag}{id}"),
            cable: Tap::without_address(&format!("{tag}g"), MTU)?,
            tap: Tap::without_address(&format!("{tag}o"), MTU)?,
            veth: format!("lhv{tag}v{id}"),
            patch: [format!("lhv{tag}p{id}"), format!("lhv{tag}q{id}")],
        };
        let Segment { bridge, cable, tap, veth, patch: [near, far] } = &segment;
        let (cable, tap, plug) = (cable.name(), tap.name(), format!("lhv{tag}w{id}"));
        // By default a bridge takes the lowest address of its ports: connecting a cable would
        // change it, and the guest would send to the old address.
        let mac = bridge_mac(id);
        ip(&format!("link add {bridge} address {mac} mtu {MTU} type bridge mcast_snooping 0"))?;
        for (one, other) in [(veth.as_str(), plug.as_str()), (near.as_str(), far.as_str())] {
            ip(&format!("link add {one} mtu {MTU} type veth peer name {other} mtu {MTU}"))?;
            ip(&format!("link set {one} addrgenmode none up"))?;
            ip(&format!("link set {other} addrgenmode none up"))?;
        }
        for port in [cable, tap, &plug, far] {
            ip(&format!("link set {port} master {bridge}"))?;
        }
        // These two are on the segment too. Linux answers ARP for any of its addresses on all
        // interfaces, so the guest could mistake either for the bridge.
        for other in [veth, near] {
            let path = format!("/proc/sys/net/ipv4/conf/{other}/arp_ignore");
            std::fs::write(&path, ARP_REPLY_TO_NONE).map_err(|e| format!("{path}: {e}"))?;
        }
        ip(&format!("link set {bridge} up"))?;
        let port = Port::Udp;
        let [v4, v6] = [Family::V4, Family::V6].map(|family| address(End::Ours, port, family));
        ip(&format!("address add {v4}/24 dev {bridge}"))?;
        ip(&format!("address add {v6}/64 dev {bridge} nodad"))?;
        Ok(segment)
    }

    /// The guest's cable.
    pub fn cable(&self) -> &Tap {
        &self.cable
    }

    /// Attachment of our device for `longhaul exec`.
    pub fn place(&self, port: Port, family: Family) -> Vec<String> {
        let bits = if family == Family::V4 { 24 } else { 64 };
        let own = address(End::Ours, port, family);
        let (tap, veth, bridge) = (self.tap.name(), &self.veth, &self.bridge);
        let words = match port {
            Port::Udp => format!("--udp={own}"),
            Port::Tap => format!("--tap {tap} --ip {own}/{bits}"),
            Port::TaggedTap => format!("--tap {tap} --ip {own}/{bits} --vlan {VLAN}"),
            Port::Interface => format!("--interface {veth} --ip {own}/{bits}"),
            Port::SharedInterface => format!("--interface {bridge} --ip {own}/{bits}"),
        };
        words.split_whitespace().map(str::to_owned).collect()
    }

    /// Commands by which the guest configures its addresses.
    pub fn guest_setup(&self) -> String {
        let add = |port, device: &str| {
            let [v4, v6] = [Family::V4, Family::V6].map(|family| address(End::Rxe, port, family));
            format!(
                "ip address add {v4}/24 dev {device}\nip address add {v6}/64 dev {device} nodad\n"
            )
        };
        format!(
            "ip link set eth0 up
            ip link add link eth0 name vlan{VLAN} type vlan id {VLAN}
            ip link set vlan{VLAN} up
            {}{}",
            add(Port::Udp, "eth0"),
            add(Port::TaggedTap, &format!("vlan{VLAN}"))
        )
    }

    /// Runs `longhaul emulate` with `options` between the guest and the bridge while the result
    /// exists.
    ///
    /// # Panics
    /// When it does not start.
    pub fn fibre(&self, options: &str, runtime: &RuntimeDir) -> Fibre<'_> {
        let (cable, near) = (self.cable.name(), &self.patch[0]);
        ip(&format!("link set {cable} nomaster")).unwrap_or_else(|e| panic!("{e}"));
        let mut command = Command::new(longhaul());
        command.args(["emulate", "--name", cable, "--keep-privileges", "--a", cable, "--b", near]);
        command.args(options.split_whitespace()).env_remove("LD_PRELOAD");
        let program = Program::start(command.env("XDG_RUNTIME_DIR", runtime.path()));
        Fibre { segment: self, program: Some(program) }
    }
}

impl Drop for Segment {
    fn drop(&mut self) {
        // These are removed with their other ends; a failed start may not have created them.
        for name in [&self.veth, &self.patch[0], &self.bridge] {
            let _ = ip(&format!("link del {name}"));
        }
    }
}

/// A fibre between a guest and the bridge of its segment. Dropping it reconnects the guest's cable
/// to the bridge.
pub struct Fibre<'a> {
    segment: &'a Segment,
    program: Option<Program>,
}

impl Drop for Fibre<'_> {
    fn drop(&mut self) {
        // While it runs, it sees the frames of the cable.
        self.program = None;
        let (cable, bridge) = (self.segment.cable.name(), &self.segment.bridge);
        // If the bridge is gone, so is its user.
        let _ = ip(&format!("link set {cable} master {bridge}"));
    }
}

/// Address of `end`, if our device uses `port`.
pub fn address(end: End, port: Port, family: Family) -> String {
    let host = match (end, port) {
        (End::Ours, Port::Udp | Port::SharedInterface) => 1,
        (End::Rxe, _) => 2,
        (End::Ours, Port::Tap | Port::TaggedTap) => 3,
        (End::Ours, Port::Interface) => 4,
    };
    let network = std::process::id() % 128 + if port == Port::TaggedTap { 128 } else { 0 };
    match family {
        Family::V4 => format!("10.177.{network}.{host}"),
        Family::V6 => format!("fd77:{network:x}::{host}"),
    }
}

/// A locally administered address for the bridge of process `id`.
fn bridge_mac(id: u32) -> String {
    let [a, b, c, d] = id.to_be_bytes();
    format!("02:b0:{a:02x}:{b:02x}:{c:02x}:{d:02x}")
}

/// Removes the devices of killed processes.
fn remove_abandoned() {
    for entry in std::fs::read_dir("/sys/class/net").into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let Some(rest) = PREFIXES.iter().find_map(|prefix| name.strip_prefix(prefix)) else {
            continue;
        };
        let maker = rest.trim_start_matches(|c: char| c.is_ascii_alphabetic());
        if maker.parse::<u32>().is_ok() && !Path::new("/proc").join(maker).exists() {
            // Another process may have removed it, or its other end.
            let _ = ip(&format!("link del {name}"));
        }
    }
}

fn ip(line: &str) -> Result<(), String> {
    let done = Command::new("ip").args(line.split_whitespace()).output();
    let done = done.map_err(|e| format!("ip (package iproute2): {e}"))?;
    let reason = String::from_utf8_lossy(&done.stderr);
    if done.status.success() { Ok(()) } else { Err(format!("ip {line}: {}", reason.trim())) }
}
