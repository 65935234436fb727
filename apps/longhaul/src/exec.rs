//! `longhaul exec`: runs an unmodified verbs program on a host of a lab, on this machine's own
//! network, or on an Ethernet segment.

mod segment;
mod udp;

use crate::problem::Problem;
use clap::ArgGroup;
use longhaul_boxes::number::within;
use longhaul_lab::{HostName, LabDir, LabName, preloadable};
use longhaul_rdma::attach;
use std::ffi::OsString;
use std::io;
use std::net::IpAddr;
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

const EXAMPLES: &str = "\
Examples:
  longhaul exec --host b -- ib_write_bw -d longhaul0 -s 4096 -R -D 5 &
  longhaul exec --host a -- ib_write_bw -d longhaul0 -s 4096 -R -D 5 10.77.0.2
  longhaul exec --host c -- ibv_devinfo
  longhaul exec --udp -- ib_write_bw -d longhaul0 -R                  on one machine
  longhaul exec --udp=192.0.2.7 -- ib_write_bw -d longhaul0 -R
      the same, with that address of the machine
  longhaul exec --udp -- ib_write_bw -d longhaul0 -R 192.0.2.7        on another
  longhaul exec --tap tap0 --ip 192.168.177.1/24 -- ib_write_bw -d longhaul0 -R
  longhaul exec --interface eth1 -- ib_write_bw -d longhaul0 -R 192.0.2.7
  longhaul exec --interface eth1 --ip 192.0.2.50/24 -- rping -s

The program sees one RDMA device, longhaul0. Host a is 10.77.0.1, host b is 10.77.0.2, and so on;
'longhaul lab status' lists the hosts of a lab.
Programs that exchange addresses over TCP (perftest without -R) use 127.0.0.1 for that.

With --udp there is no lab: packets are RoCEv2 over a UDP socket of this machine, and any RoCEv2
device that it can reach may be the peer. UDP port 4791 must be open in both directions. Only one
program at a time can use an address.

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
#[command(
    after_help = EXAMPLES,
    group = ArgGroup::new("network").args(["host", "udp", "tap", "interface"]).required(true)
)]
pub struct Args {
    /// Host of the lab on which the program runs: a, b and so on
    #[arg(long)]
    host: Option<HostName>,
    /// Name of the lab
    #[arg(long, default_value_t)]
    lab: LabName,
    /// Use this machine's network instead of a lab, from this address or the default route's
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
    #[arg(long, value_name = "ADDRESS/BITS", conflicts_with_all = ["host", "lab", "udp"])]
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
    /// The program and its arguments
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    program: Vec<OsString>,
}

impl Args {
    /// The requested attachment to a segment, if any.
    fn segment(&self) -> Option<segment::Attachment<'_>> {
        let line = match (&self.tap, &self.interface) {
            (Some(name), _) => segment::Line::Tap(name),
            (None, Some(name)) => segment::Line::Interface(name),
            (None, None) => return None,
        };
        let Args { ip: address, gateway, mac, vlan, .. } = *self;
        Some(segment::Attachment { line, address, gateway, mac, vlan })
    }
}

pub fn run(args: &Args) -> Result<ExitCode, Problem> {
    let mut command = match (args.host, args.udp, args.segment()) {
        (_, Some(address), _) => udp::command(address, &args.program)?,
        (_, None, Some(attachment)) => segment::command(&attachment, &args.program)?,
        (Some(host), None, None) => command(&LabDir::of(&args.lab)?, host, &args.program)?,
        (None, None, None) => return Err(Problem::plain("neither a host nor an address is given")),
    };
    let error = command.exec();
    let program = args.program[0].to_string_lossy();
    Err(match error.kind() {
        io::ErrorKind::PermissionDenied => {
            Problem::new(format!("'{program}' cannot be executed"), "check its permissions")
        }
        _ => Problem::plain(format!("cannot run '{program}': {error}")),
    })
}

/// The command that runs `program` on `host`. The command, and then the program, holds one of the
/// host's slots.
pub fn command(dir: &LabDir, host: HostName, program: &[OsString]) -> Result<Command, Problem> {
    let spec = dir.spec()?;
    spec.check_host(host)?;
    let program = Program::find(program)?;
    let (slot, lock) = dir.take_slot(host, spec.slots())?;
    let mut command = program.command(&dir.preload_link(host, slot))?;
    command
        .env(attach::ENV_SOCKET, dir.memif_socket(host))
        .env(attach::ENV_ID, slot.to_string())
        .env(attach::ENV_SLOT, slot.to_string())
        .env(attach::ENV_HOST, host.to_string())
        .env(attach::ENV_IP, host.ip().to_string())
        .env(attach::ENV_MAC, attach::mac_of(host.ip().into()).to_string())
        .env(attach::ENV_PORT_RATE_BPS, spec.rate.as_bps().to_string())
        .env(attach::ENV_COUNTERS, dir.counters(host, slot));
    // The program inherits the open file and with it the slot, until its last process ends. SAFETY:
    // between fork and exec only fcntl is called, which is async-signal-safe, on a descriptor that
    // the closure owns.
    unsafe {
        command.pre_exec(move || match libc::fcntl(lock.as_raw_fd(), libc::F_SETFD, 0) {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        });
    }
    Ok(command)
}

/// An existing program, and the library that it must load.
struct Program<'a> {
    name: &'a OsString,
    arguments: &'a [OsString],
    path: PathBuf,
    library: PathBuf,
}

impl<'a> Program<'a> {
    fn find(program: &'a [OsString]) -> Result<Self, Problem> {
        let (name, arguments) =
            program.split_first().ok_or_else(|| Problem::plain("no program given"))?;
        Ok(Program { name, arguments, path: find_program(name)?, library: preload_library()? })
    }

    /// Returns the command that loads the library, through `link` if the library's own path cannot
    /// be used.
    fn command(self, link: &Path) -> Result<Command, Problem> {
        let mut preloads = preloadable(self.library, link)?.into_os_string();
        if let Some(others) = std::env::var_os("LD_PRELOAD").filter(|o| !o.is_empty()) {
            preloads.push(":");
            preloads.push(others);
        }
        let mut command = Command::new(self.path);
        command.arg0(self.name).args(self.arguments).env("LD_PRELOAD", preloads);
        // This may run in a program of another lab.
        for variable in attach::IDENTITY {
            command.env_remove(variable);
        }
        Ok(command)
    }
}

/// Looks up `name` in PATH, so that the error for a missing program has a remedy.
fn find_program(name: &OsString) -> Result<PathBuf, Problem> {
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
        name if name.starts_with("ibv_") => Some("ibverbs-utils"),
        name if name.starts_with("ib_") || name.starts_with("raw_ethernet_") => Some("perftest"),
        _ => None,
    }
}

/// The preload library is in this program's directory.
fn preload_library() -> Result<PathBuf, Problem> {
    const NAME: &str = "liblonghaul_preload.so";
    let program =
        std::env::current_exe().map_err(|e| Problem::io("find", Path::new("this program"), &e))?;
    let beside = program.with_file_name(NAME);
    if beside.exists() {
        return Ok(beside);
    }
    Err(Problem::new(
        format!("{} is missing", beside.display()),
        "build it with 'cargo build --release -p longhaul-preload'",
    ))
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
    fn a_missing_network_is_told_with_every_option_for_one() {
        let told = refused("exec -- true");
        for option in ["--host", "--udp", "--tap", "--interface"] {
            assert!(told.contains(option), "{told}");
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
