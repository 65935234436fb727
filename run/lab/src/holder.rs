//! The process that holds the namespaces of a lab's hosts, and its daemon's end of it.
//!
//! Nothing but this process keeps a host's namespaces: there are no named mounts, so nothing
//! remains once it ends. It ends when its socket to the daemon closes, by whatever death of the
//! daemon. It creates each host's interface in the host's namespace and passes the TAP device's
//! descriptor to the daemon; the device is deleted with the daemon's copy.
//!
//! One process holds the namespaces of all hosts, so that without privilege they belong to one user
//! namespace and a program on one host can start programs on another.

use crate::dir::LabDir;
use crate::network::{HostNamespaces, Network};
use crate::spec::{HOSTS_MAX, HostName, Spec};
use longhaul_netdev::{NetdevError, TapConfig, TapPort, interface};
use longhaul_units::Duration as Span;
use rustix::fs::{CWD, StatVfsMountFlags, statvfs};
use rustix::mount::{
    MountFlags, MountPropagationFlags, MoveMountFlags, OpenTreeFlags, mount, mount_bind,
    mount_change, move_mount, open_tree,
};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use rustix::process::{Signal, getegid, geteuid, set_parent_process_death_signal};
use rustix::system::sethostname;
use rustix::thread::{UnshareFlags, unshare_unsafe};
use serde::{Deserialize, Serialize};
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::net::{Ipv4Addr, Ipv6Addr, Shutdown};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, ExitCode, Stdio};

/// Name of a host's interface in its namespace.
pub const INTERFACE: &str = "lh0";
/// MTU of that interface, in bytes.
const MTU: u32 = 9000;
/// Prefix length of the lab's network.
const PREFIX_LEN: u8 = 24;
/// Prefix length of its IPv6 addresses.
const PREFIX_LEN_V6: u8 = 64;
/// Largest buffer of a TCP connection, which the kernel keeps in an `int`.
const TCP_BUFFER_BYTES_MAX: u64 = 1 << 30;

/// Request of the daemon: one line of JSON.
#[derive(Debug, Serialize, Deserialize)]
struct Request {
    /// The file that becomes `/etc/hosts`.
    hosts_file: PathBuf,
    /// Bytes that a TCP connection may buffer at either end.
    tcp_buffer_bytes: u64,
    /// The hosts are of no use without their IPv6 addresses.
    needs_ipv6: bool,
    hosts: Vec<Host>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Host {
    name: String,
    address: Ipv4Addr,
    addresses_v6: [Ipv6Addr; 2],
    mac: [u8; 6],
}

/// Reply to it, in JSON, with the descriptor of each host's TAP device.
type Reply = Result<Vec<HostNamespaces>, String>;

/// The holder of a running lab. Dropping it ends the holder, and with it the namespaces in which no
/// program runs.
pub(crate) struct Holder {
    child: Child,
    socket: UnixStream,
}

impl Drop for Holder {
    fn drop(&mut self) {
        // It may have been killed.
        let _ = self.socket.shutdown(Shutdown::Both);
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn tap_config() -> TapConfig {
    TapConfig { mtu: Some(MTU), offloads: true, up: false, ..TapConfig::new(INTERFACE) }
}

/// Creates the hosts' namespaces and interfaces. Returns them, with a port to each host's kernel in
/// the order of the hosts; or why they cannot be had, as a sentence.
pub(crate) fn start(spec: &Spec, dir: &LabDir) -> Result<(Holder, Network, Vec<TapPort>), String> {
    let hosts_file = dir.hosts_file();
    fs::write(&hosts_file, hosts_text(spec))
        .map_err(|error| format!("cannot write {}: {error}", hosts_file.display()))?;
    let hosts = spec.hosts().map(|host| Host {
        name: host.to_string(),
        address: host.ip(),
        addresses_v6: [host.ipv6(), host.link_local()],
        mac: host.mac().0,
    });
    let request = Request {
        hosts_file,
        tcp_buffer_bytes: tcp_buffer_bytes(spec),
        needs_ipv6: spec.ipv6,
        hosts: hosts.collect(),
    };
    let (holder, reply, devices) = ask(&request)
        .map_err(|error| format!("cannot start the process that holds them: {error}"))?;
    let hosts = reply?;
    if hosts.len() != request.hosts.len() || devices.len() != hosts.len() {
        return Err("the process that holds them answered for other hosts".to_owned());
    }
    let ports = spec.hosts().zip(devices).map(|(host, device)| {
        let config = TapConfig { name: format!("kernel of host {host}"), ..tap_config() };
        TapPort::adopt(&config, device).map_err(|error| error.to_string())
    });
    let ports = ports.collect::<Result<_, _>>()?;
    let network = Network::Kernel { holder: holder.child.id(), hosts };
    Ok((holder, network, ports))
}

/// Buffer of a TCP connection that fills the fibre: what is in flight, twice, because the kernel
/// counts the memory of its frames (`tcp_adv_win_scale`), and again for what is retransmitted.
fn tcp_buffer_bytes(spec: &Spec) -> u64 {
    let delay = Span::of_fibre_m(spec.distance.metres());
    spec.rate.bytes_in(delay + delay).saturating_mul(4).min(TCP_BUFFER_BYTES_MAX)
}

/// What `/etc/hosts` is on every host. A host's name is the address that its device has too; the
/// other family's has a name of its own.
fn hosts_text(spec: &Spec) -> String {
    let hosts = spec.hosts().map(|host: HostName| match spec.ipv6 {
        false => format!("{} {host}\n{} {host}6\n", host.ip(), host.ipv6()),
        true => format!("{} {host}4\n{} {host}\n", host.ip(), host.ipv6()),
    });
    "127.0.0.1 localhost\n::1 localhost ip6-localhost ip6-loopback\n".to_owned()
        + &hosts.collect::<String>()
}

/// Starts this executable as `lab hold`, and passes it `request`.
fn ask(request: &Request) -> io::Result<(Holder, Reply, Vec<OwnedFd>)> {
    let (socket, its_end) = UnixStream::pair()?;
    let child = Command::new(std::env::current_exe()?)
        .args(["lab", "hold"])
        .stdin(OwnedFd::from(its_end))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        // Ctrl-C in the terminal ends the daemon first.
        .process_group(0)
        .spawn()?;
    let holder = Holder { child, socket };
    let mut line = serde_json::to_vec(request)?;
    line.push(b'\n');
    (&holder.socket).write_all(&line)?;
    let (text, devices) = receive(&holder.socket)?;
    let reply = serde_json::from_slice(&text)?;
    Ok((holder, reply, devices))
}

/// One line, and the descriptors that come with it.
fn receive(socket: &UnixStream) -> io::Result<(Vec<u8>, Vec<OwnedFd>)> {
    const TEXT_MAX: usize = 64 << 10;
    let (mut text, mut devices) = (Vec::new(), Vec::new());
    let mut bytes = [0; 4096];
    while text.last() != Some(&b'\n') {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(HOSTS_MAX))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let parts = &mut [IoSliceMut::new(&mut bytes)];
        let received = recvmsg(socket, parts, &mut control, RecvFlags::CMSG_CLOEXEC)?.bytes;
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(descriptors) = message {
                devices.extend(descriptors);
            }
        }
        if received == 0 || text.len() > TEXT_MAX {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        text.extend_from_slice(&bytes[..received]);
    }
    Ok((text, devices))
}

/// Main function of the holder. Standard input is its socket.
pub fn hold() -> ExitCode {
    let held = || -> io::Result<()> {
        let mut socket = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
        let mut line = String::new();
        BufReader::new(&socket).read_line(&mut line)?;
        let request: Request = serde_json::from_str(&line)?;
        let prepared = prepare(&request);
        // The kernel clears this when the process enters a user namespace. If the daemon is gone
        // already, its socket says so.
        set_parent_process_death_signal(Some(Signal::KILL))?;
        let (reply, hosts) = match prepared {
            Ok(hosts) => (Reply::Ok(hosts.iter().map(Held::names).collect()), hosts),
            Err(refused) => (Reply::Err(refused.to_string()), Vec::new()),
        };
        send(&socket, &reply, &hosts)?;
        // The daemon has the devices now, and they end with it.
        let _namespaces: Vec<[File; 3]> = hosts.into_iter().map(|host| host.namespaces).collect();
        // Until the daemon ends.
        socket.read_exact(&mut [0])
    };
    match held() {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

fn send(mut socket: &UnixStream, reply: &Reply, hosts: &[Held]) -> io::Result<()> {
    let mut line = serde_json::to_vec(reply)?;
    line.push(b'\n');
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(HOSTS_MAX))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let devices: Vec<_> = hosts.iter().map(|host| host.device.as_fd()).collect();
    if !devices.is_empty() && !control.push(SendAncillaryMessage::ScmRights(&devices)) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let sent = sendmsg(socket, &[IoSlice::new(&line)], &mut control, SendFlags::NOSIGNAL)?;
    socket.write_all(&line[sent..])
}

/// A host of which this process is the holder.
struct Held {
    /// Of network, mounts and host name.
    namespaces: [File; 3],
    device: OwnedFd,
}

impl Held {
    fn names(&self) -> HostNamespaces {
        let [network, mounts, name] = self.namespaces.each_ref().map(AsRawFd::as_raw_fd);
        HostNamespaces { network, mounts, name }
    }
}

/// Why hosts cannot have a network.
#[derive(Debug, thiserror::Error)]
enum Refused {
    /// A step and the operating system's error.
    #[error("{0}: {1}")]
    Step(&'static str, io::Error),
    /// The kernel gives this user no namespaces.
    #[error(
        "this user may not create namespaces ({0}): run this as root, or allow it \
         (sysctl kernel.unprivileged_userns_clone=1 user.max_user_namespaces=1000, \
         kernel.apparmor_restrict_unprivileged_userns=0; in a container, its seccomp profile)"
    )]
    Namespaces(io::Error),
    #[error(transparent)]
    Interface(#[from] NetdevError),
}

fn step<T, E: Into<io::Error>>(name: &'static str, outcome: Result<T, E>) -> Result<T, Refused> {
    outcome.map_err(|error| Refused::Step(name, error.into()))
}

/// Leaves the namespaces named by `flags` for new ones.
fn unshare(flags: UnshareFlags) -> io::Result<()> {
    // SAFETY: this process has one thread, and shares no table of descriptors.
    Ok(unsafe { unshare_unsafe(flags) }?)
}

fn prepare(request: &Request) -> Result<Vec<Held>, Refused> {
    // Keeps no file system busy.
    step("changing to /", std::env::set_current_dir("/"))?;
    let own = UnshareFlags::NEWNET | UnshareFlags::NEWNS | UnshareFlags::NEWUTS;
    // Without privilege, a user namespace has it.
    if let Err(error) = unshare(own) {
        if error.raw_os_error() != Some(libc::EPERM) {
            return Err(Refused::Namespaces(error));
        }
        enter_user_namespace()?;
    }
    request.hosts.iter().map(|host| prepare_host(request, host, own)).collect()
}

/// Enters a user namespace in which this user has their own ids, and every capability.
fn enter_user_namespace() -> Result<(), Refused> {
    let (user, group) = (geteuid(), getegid());
    unshare(UnshareFlags::NEWUSER).map_err(Refused::Namespaces)?;
    // Required before a group is mapped.
    step("denying setgroups", fs::write("/proc/self/setgroups", "deny"))?;
    let same = |id: u32| format!("{id} {id} 1");
    step("mapping the user", fs::write("/proc/self/uid_map", same(user.as_raw())))?;
    step("mapping the group", fs::write("/proc/self/gid_map", same(group.as_raw())))
}

fn prepare_host(request: &Request, host: &Host, own: UnshareFlags) -> Result<Held, Refused> {
    unshare(own).map_err(Refused::Namespaces)?;
    // Later mounts of the machine appear, and none goes back.
    let slave = MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC;
    step("separating mounts", mount_change("/", slave))?;
    step("mounting /etc/hosts", mount_bind(&request.hosts_file, "/etc/hosts"))?;
    show_own_interfaces();
    step("setting the host name", sethostname(host.name.as_bytes()))?;
    let device = TapPort::create(&tap_config())?;
    for limits in ["tcp_rmem", "tcp_wmem"] {
        // With the machine's limits TCP works too, but fills no long path.
        let _ = raise_tcp_limit(limits, request.tcp_buffer_bytes);
    }
    interface::bring_up("lo", None, None)?;
    // Nobody else has these addresses: with the check they are usable a second later. The kernel
    // would add a link-local address of its own, which the device does not have.
    for (setting, value) in [("accept_dad", "0"), ("addr_gen_mode", "1")] {
        let _ = fs::write(format!("/proc/sys/net/ipv6/conf/{INTERFACE}/{setting}"), value);
    }
    interface::bring_up(INTERFACE, Some(host.mac), Some((host.address, PREFIX_LEN)))?;
    for address in host.addresses_v6 {
        match interface::add_ipv6(INTERFACE, address, PREFIX_LEN_V6) {
            Err(error) if request.needs_ipv6 => return Err(error.into()),
            _ => {}
        }
    }
    let open = |name| step("opening a namespace", File::open(format!("/proc/self/ns/{name}")));
    Ok(Held { namespaces: [open("net")?, open("mnt")?, open("uts")?], device })
}

/// Raises the largest buffer of this network namespace's TCP connections to `bytes`.
fn raise_tcp_limit(limits: &str, bytes: u64) -> io::Result<()> {
    let path = format!("/proc/sys/net/ipv4/{limits}");
    let text = fs::read_to_string(&path)?;
    // Least, initial and largest size.
    let sizes: Vec<u64> = text.split_whitespace().filter_map(|size| size.parse().ok()).collect();
    match sizes[..] {
        [least, initial, largest] if largest < bytes => {
            fs::write(&path, format!("{least} {initial} {bytes}"))
        }
        _ => Ok(()),
    }
}

/// Mounts a `/sys` that has this namespace's interfaces, and the machine's control groups. Without
/// permission the machine's `/sys` stays, whose `class/net` is the machine's.
fn show_own_interfaces() {
    let groups = "/sys/fs/cgroup";
    let flags = OpenTreeFlags::OPEN_TREE_CLONE
        | OpenTreeFlags::AT_RECURSIVE
        | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    let kept = open_tree(CWD, groups, flags);
    let is_read_only =
        statvfs("/sys").is_ok_and(|sys| sys.f_flag.contains(StatVfsMountFlags::RDONLY));
    let mut flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    flags.set(MountFlags::RDONLY, is_read_only);
    if mount("sysfs", "/sys", "sysfs", flags, None).is_ok()
        && let Ok(kept) = kept
    {
        // Few programs look there.
        let _ = move_mount(kept, "", CWD, groups, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH);
    }
}
