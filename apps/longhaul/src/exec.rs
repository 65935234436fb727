//! `longhaul exec`: runs an unmodified verbs program on a host of a lab, on this machine's own
//! network, or on an Ethernet segment.

mod environment;
mod loading;
mod segment;
mod udp;

use crate::problem::Problem;
use clap::ArgGroup;
use longhaul_boxes::number::within;
use longhaul_lab::{HostName, LabDir, LabName};
use longhaul_rdma::attach;
use std::ffi::OsString;
use std::fs;
use std::io;
use std::net::IpAddr;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

pub use environment::Environment;

const EXAMPLES: &str = "\
Examples:
  longhaul exec --host b -- ib_write_bw -d longhaul0 -s 4096 -R -D 5 &
  longhaul exec --host a -- ib_write_bw -d longhaul0 -s 4096 -R -D 5 10.77.0.2
  longhaul exec --host c -- ibv_devinfo
  longhaul exec --host a -- bash                                      a shell on host a
  longhaul exec --host a -- ping b
  longhaul exec --host a --trace calls.json -- ib_write_bw -d longhaul0 -R 10.77.0.2
      a trace of its verbs calls, and what share of its time they took
  longhaul exec -- ib_write_bw -d longhaul0 -R                        on one machine
  longhaul exec --udp=192.0.2.7 -- ib_write_bw -d longhaul0 -R
      the same, with that address of the machine
  longhaul exec -- ib_write_bw -d longhaul0 -R 192.0.2.7              on another
  longhaul exec --tap tap0 --ip 192.168.177.1/24 -- ib_write_bw -d longhaul0 -R
  longhaul exec --interface eth1 -- ib_write_bw -d longhaul0 -R 192.0.2.7
  longhaul exec --interface eth1 --ip 192.0.2.50/24 -- rping -s

The program sees one RDMA device, longhaul0. Host a is 10.77.0.1, host b is 10.77.0.2, and so on;
'longhaul lab status' lists the hosts of a lab.
A lab host has a network of its own, with the kernel's interface lh0 at that address; a, b and so on
are also names there. In a lab without it (--network none, --back-to-back, or where namespaces are
forbidden), programs share this machine's network, and those that exchange addresses over TCP
(perftest without -R) use 127.0.0.1 for that.

With --udp, or no option, there is no lab: packets are RoCEv2 over a UDP socket of this machine, and
any RoCEv2 device that it can reach may be the peer. UDP port 4791 must be open in both directions.
Only one program at a time can use an address; two on one machine use --udp=127.0.0.1 and
--udp=127.0.0.2.

The device is also below /sys/class/infiniband, for programs that use the C library. The loader
preloads nothing into programs that are linked statically or have another user's privileges (setuid,
file capabilities): they see no device. 'longhaul env' prints the environment for a shell.

With --tap and --interface the program is on an Ethernet segment, with real frames: the program's
device writes all headers, any RoCEv2 device there may be the peer, and multicast works. They need
root, or CAP_NET_ADMIN and CAP_NET_RAW.
  --tap NAME --ip ADDRESS/BITS
      The program is a host at the far end of the TAP device: the kernel's use of the device (a
      bridge, a route, a virtual machine) decides which hosts it reaches. It answers ARP and IPv6
      neighbour discovery for its address, and has its own MAC address. A missing device is created
      for as long as the program runs. Only one program at a time can use a TAP device. The cleanest
      option, and the only one that reaches this machine itself.
  --interface NAME
      The program shares the interface's address and MAC address with this machine, whose kernel
      provides routes and neighbours. Needs no change of the network, but every RoCEv2 packet also
      passes the kernel's UDP, multicast does not work, and this machine's own RoCE (rxe, another
      program with --udp) cannot use the address at the same time.
  --interface NAME --ip ADDRESS/BITS
      The program is another host on the segment, with an unused address, and with the interface's
      MAC address or that of --mac. The interface is put into promiscuous mode. Switches and
      hypervisors that allow one MAC or IP address per port must permit this; if this machine
      forwards packets (net.ipv4.ip_forward), use --mac. Several programs can share the interface,
      each with its own address.
Packets to this machine's own addresses do not return from an interface: use --tap for them. No
segment returns a program's packets to its own address.
The kernel reports a program's multicast groups to switches with IGMP or MLD snooping on an
interface, untagged; on a TAP device and with --vlan nobody reports them: make the network flood
groups there (for a bridge: mcast_snooping 0).
An address that another program uses on the same line is refused; if another machine has it, a line
on stderr says so.";

#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    #[command(flatten)]
    network: Network,
    /// Write a trace of the program's verbs calls, for Perfetto or chrome://tracing
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// The program and its arguments
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    program: Vec<OsString>,
}

/// Where a program runs: on a lab host, on this machine's network, or on a segment.
#[derive(clap::Args)]
#[command(
    group = ArgGroup::new("network").args(["host", "udp", "tap", "interface"]),
    group = ArgGroup::new("segment").args(["tap", "interface"])
)]
pub struct Network {
    /// Host of the lab on which the program runs: a, b and so on
    #[arg(long)]
    host: Option<HostName>,
    /// Name of the lab
    #[arg(long, default_value_t, requires = "host")]
    lab: LabName,
    /// Use this machine's network, from this address or the default route's [default if no other
    /// network is given]
    #[arg(
        long,
        value_name = "ADDRESS",
        num_args = 0..=1,
        require_equals = true,
        conflicts_with = "lab"
    )]
    udp: Option<Option<IpAddr>>,
    /// Use the far end of this TAP device instead of a lab, with the address of --ip
    #[arg(long, value_name = "NAME", requires = "ip", conflicts_with = "lab")]
    tap: Option<String>,
    /// Use this Ethernet interface instead of a lab, with this machine's address or that of --ip
    #[arg(long, value_name = "NAME", conflicts_with = "lab")]
    interface: Option<String>,
    /// The program's own address on the segment, and the segment's prefix length
    #[arg(long, value_name = "ADDRESS/BITS", requires = "segment")]
    #[arg(conflicts_with_all = ["host", "lab", "udp"])]
    ip: Option<segment::Address>,
    /// Next hop to other networks
    #[arg(long, value_name = "ADDRESS", requires = "ip")]
    #[arg(conflicts_with_all = ["host", "lab", "udp"])]
    gateway: Option<IpAddr>,
    /// MAC address of the program [default: the interface's; on a TAP device, derived from the IP
    /// address]
    #[arg(long, requires = "ip", conflicts_with_all = ["host", "lab", "udp"])]
    mac: Option<segment::Mac>,
    /// VLAN tag of the program's frames
    #[arg(
        long,
        value_name = "ID",
        requires = "ip",
        conflicts_with_all = ["host", "lab", "udp"],
        value_parser = within::<u16>(1..=4094)
    )]
    vlan: Option<u16>,
}

impl Network {
    /// The environment of a program there.
    pub fn environment(&self) -> Result<Environment, Problem> {
        match (self.host, self.segment()) {
            (Some(host), _) => on_host(&LabDir::of(&self.lab)?, host),
            (None, Some(attachment)) => segment::environment(&attachment),
            (None, None) => {
                if self.udp.is_none() {
                    mention_labs();
                }
                udp::environment(self.udp.flatten())
            }
        }
    }

    /// True on a host of a lab.
    pub fn is_lab(&self) -> bool {
        self.host.is_some()
    }

    /// The requested attachment to a segment, if any.
    fn segment(&self) -> Option<segment::Attachment<'_>> {
        let line = match (&self.tap, &self.interface) {
            (Some(name), _) => segment::Line::Tap(name),
            (None, Some(name)) => segment::Line::Interface(name),
            (None, None) => return None,
        };
        let Network { ip: address, gateway, mac, vlan, .. } = *self;
        Some(segment::Attachment { line, address, gateway, mac, vlan })
    }
}

/// Mentions a lab of this user, which may have been meant.
fn mention_labs() {
    if let Ok(labs) = LabDir::all_up()
        && let Some(lab) = labs.first()
    {
        eprintln!(
            "longhaul: this is on the machine's own network; --host a is a host of the lab '{}'",
            lab.name().as_str()
        );
    }
}

pub fn run(args: &Args) -> Result<ExitCode, Problem> {
    let program = Program::find(&args.program)?;
    let mut environment = args.network.environment()?;
    if !environment.has_network()
        && let Some(obstacle) = loading::obstacle(&program.path)
    {
        let name = args.program[0].to_string_lossy();
        eprintln!(
            "longhaul: '{name}' sees no RDMA device: {obstacle}, so that no library can be \
             preloaded"
        );
    }
    if let Some(trace) = &args.trace {
        environment.set(attach::ENV_TRACE, begin_trace(trace)?.display());
    }
    environment.enter()?;
    let error = program.command(environment).exec();
    let program = args.program[0].to_string_lossy();
    Err(match error.kind() {
        io::ErrorKind::PermissionDenied => {
            Problem::new(format!("'{program}' cannot be executed"), "check its permissions")
        }
        _ => Problem::plain(format!("cannot run '{program}': {error}")),
    })
}

/// Creates the file of a trace, to which the program's processes append; returns its full path.
fn begin_trace(path: &Path) -> Result<PathBuf, Problem> {
    let written = fs::write(path, "[\n").and_then(|()| fs::canonicalize(path));
    written.map_err(|error| Problem::plain(format!("cannot write {}: {error}", path.display())))
}

/// The command that runs `program` on `host`.
pub fn command(dir: &LabDir, host: HostName, program: &[OsString]) -> Result<Command, Problem> {
    let program = Program::find(program)?;
    let environment = on_host(dir, host)?;
    environment.create_files();
    Ok(program.command(environment))
}

/// The environment of programs on `host`.
fn on_host(dir: &LabDir, host: HostName) -> Result<Environment, Problem> {
    let spec = dir.spec()?;
    spec.check_host(host)?;
    let entrance = dir.network()?.entrance(host)?;
    let mut environment = Environment::new(&dir.preload_link())?;
    environment.enter_by(entrance);
    if spec.back_to_back {
        // Either may start first.
        let role = if host == HostName::B { "master" } else { "slave" };
        environment
            .set(attach::ENV_SOCKET, dir.back_to_back_socket().display())
            .set(attach::ENV_ROLE, role);
    } else {
        environment
            .set(attach::ENV_SOCKET, dir.memif_socket(host).display())
            .set(attach::ENV_PORT_RATE_BPS, spec.rate.as_bps());
    }
    environment
        .set(attach::ENV_SLOTS, dir.slots(host).display())
        .set(attach::ENV_HOST, host)
        .set(attach::ENV_IP, spec.device_addresses(host).map(|ip| ip.to_string()).join(","))
        .set(attach::ENV_MAC, attach::mac_of(host.ip().into()))
        .set(attach::ENV_COUNTERS, dir.counters(host).display());
    Ok(environment)
}

/// An existing program.
struct Program<'a> {
    name: &'a OsString,
    arguments: &'a [OsString],
    path: PathBuf,
}

impl<'a> Program<'a> {
    fn find(program: &'a [OsString]) -> Result<Self, Problem> {
        let (name, arguments) =
            program.split_first().ok_or_else(|| Problem::plain("no program given"))?;
        Ok(Program { name, arguments, path: find_program(name)? })
    }

    /// Returns the command that runs the program in `environment`.
    fn command(self, environment: Environment) -> Command {
        let mut command = Command::new(self.path);
        command.arg0(self.name).args(self.arguments);
        environment.apply(&mut command);
        command
    }
}

/// Looks up `name` in PATH, so that the error for a missing program has a remedy.
pub fn find_program(name: &OsString) -> Result<PathBuf, Problem> {
    if name.as_encoded_bytes().contains(&b'/') {
        let path = PathBuf::from(name);
        return if path.exists() {
            Ok(path)
        } else {
            Err(Problem::plain(format!("no file {}", path.display())))
        };
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .map(|dir| dir.join(name))
        .find(|candidate| candidate.is_file())
        .ok_or_else(|| {
            let name = name.to_string_lossy();
            let cure = match package_of(&name) {
                Some(package) => format!("install it with 'apt-get install {package}'"),
                None if name.parse::<IpAddr>().is_ok() => {
                    format!("to give --udp this address, write --udp={name}")
                }
                None => "check the name, or install its package".to_string(),
            };
            Problem::new(format!("no program '{name}' is installed"), cure)
        })
}

/// Debian's package of a common program.
fn package_of(program: &str) -> Option<&'static str> {
    match program {
        "rping" | "ucmatose" | "udaddy" | "udpong" | "mckey" | "cmtime" | "rdma_server"
        | "rdma_client" | "rdma_xserver" | "rdma_xclient" | "rstream" | "rcopy" => {
            Some("rdmacm-utils")
        }
        "qperf" => Some("qperf"),
        "ibstat" | "ibstatus" => Some("infiniband-diags"),
        "ucx_info" | "ucx_perftest" => Some("ucx-utils"),
        "fi_info" | "fi_pingpong" => Some("libfabric-bin"),
        "qemu-system-x86_64" => Some("qemu-system-x86"),
        name if name.starts_with("ibv_") => Some("ibverbs-utils"),
        name if name.starts_with("ib_") || name.starts_with("raw_ethernet_") => Some("perftest"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Exec {
        #[command(flatten)]
        args: Args,
    }

    fn refused(line: &str) -> String {
        match Exec::try_parse_from(line.split(' ')) {
            Ok(_) => panic!("accepted: {line}"),
            Err(error) => crate::problem::of_command_line(&error),
        }
    }

    #[test]
    fn without_a_network_a_program_is_on_this_machines() {
        let exec = Exec::try_parse_from(["exec", "--", "true"]).ok().unwrap();
        assert!(!exec.args.network.is_lab() && exec.args.network.segment().is_none());
        for line in ["exec --lab l -- true", "exec --ip 10.0.0.1/8 -- true"] {
            let told = refused(line);
            assert!(told.contains("required"), "{told}");
        }
    }

    #[test]
    fn no_option_of_a_segment_is_ignored() {
        for network in ["--udp", "--host a"] {
            for option in ["--gateway 1.1.1.1", "--mac 02:00:0a:4d:00:01", "--vlan 7"] {
                let told = refused(&format!("exec {option} {network} -- true"));
                assert!(told.contains("cannot be used with"), "{told}");
            }
        }
        for pair in ["--udp --host a", "--tap t --interface i --ip 10.0.0.1/8", "--udp --lab l"] {
            let told = refused(&format!("exec {pair} -- true"));
            assert!(told.contains("cannot be used with"), "{told}");
        }
        for line in ["exec --host a --lab l true", "exec --udp true", "exec --interface i true"] {
            assert!(Exec::try_parse_from(line.split(' ')).is_ok(), "{line}");
        }
    }

    #[test]
    fn an_address_instead_of_a_program_is_for_udp() {
        let told = find_program(&"127.0.0.1".into()).unwrap_err().to_string();
        assert!(told.contains("write --udp=127.0.0.1"), "{told}");
    }
}
