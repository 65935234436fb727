//! An Ethernet segment of this machine: a bridge, a guest's cable, and several ways for our device
//! to be on it.

use super::{End, Family, MTU};
use crate::guest::Tap;
use crate::{Program, RuntimeDir, longhaul};
use std::path::Path;
use std::process::Command;

/// What the names of bridges and veth devices begin with.
const PREFIXES: [&str; 2] = ["lhb", "lhv"];
/// The VLAN of [`Port::TaggedTap`].
const VLAN: u16 = 7;

/// How our device is on the segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Port {
    /// A UDP socket of this machine, whose address is the bridge's.
    Udp,
    /// A TAP device, with an address of its own.
    Tap,
    /// The same, in a VLAN.
    TaggedTap,
    /// A veth device by AF_PACKET, with an address of its own.
    Interface,
    /// The bridge by AF_PACKET, with this machine's address.
    SharedInterface,
}

/// The segment. Its networks are this process's own, so that several tests get along.
pub struct Segment {
    bridge: String,
    /// The guest's.
    cable: Tap,
    /// Our device's.
    tap: Tap,
    /// Its other end is on the bridge.
    veth: String,
    /// Two ends of a cable between a fibre and the bridge.
    patch: [String; 2],
}

impl Segment {
    /// Makes it. `tag`, of at most 3 letters, tells it from others of this process.
    ///
    /// # Errors
    /// When this user may not, or the kernel lacks something.
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
        ip(&format!("link add {bridge} mtu {MTU} type bridge mcast_snooping 0"))?;
        for (one, other) in [(veth.as_str(), plug.as_str()), (near.as_str(), far.as_str())] {
            ip(&format!("link add {one} mtu {MTU} type veth peer name {other} mtu {MTU}"))?;
            ip(&format!("link set {one} addrgenmode none up"))?;
            ip(&format!("link set {other} addrgenmode none up"))?;
        }
        for port in [cable, tap, &plug, far] {
            ip(&format!("link set {port} master {bridge}"))?;
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

    /// Where our device is, for `longhaul exec`.
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

    /// What the guest is to run for its addresses.
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

    /// Puts `longhaul emulate`, with `options`, between the guest and the bridge, as long as the
    /// answer lives.
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
        // They go with their other ends; a failed start may not have made them.
        for name in [&self.veth, &self.patch[0], &self.bridge] {
            let _ = ip(&format!("link del {name}"));
        }
    }
}

/// A fibre between a guest and the bridge of its segment. Dropping it puts the guest's cable back
/// on the bridge.
pub struct Fibre<'a> {
    segment: &'a Segment,
    program: Option<Program>,
}

impl Drop for Fibre<'_> {
    fn drop(&mut self) {
        // It sees the frames of the cable for as long as it lives.
        self.program = None;
        let (cable, bridge) = (self.segment.cable.name(), &self.segment.bridge);
        // Without the bridge there is nobody to miss it.
        let _ = ip(&format!("link set {cable} master {bridge}"));
    }
}

/// The address of `end` where our device is on the segment by `port`.
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

/// Removes what processes have left that were killed.
fn remove_abandoned() {
    for entry in std::fs::read_dir("/sys/class/net").into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let Some(rest) = PREFIXES.iter().find_map(|prefix| name.strip_prefix(prefix)) else {
            continue;
        };
        let maker = rest.trim_start_matches(|c: char| c.is_ascii_alphabetic());
        if maker.parse::<u32>().is_ok() && !Path::new("/proc").join(maker).exists() {
            // Somebody else may have removed it, or its other end.
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
