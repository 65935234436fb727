//! `longhaul exec`: runs an unmodified verbs program on a host of a lab.

use crate::lab::{HostName, LabDir, LabName};
use crate::problem::Problem;
use longhaul_rdma::attach;
use std::ffi::OsString;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

const EXAMPLES: &str = "\
Examples:
  longhaul exec --host b -- ib_write_bw -d longhaul0 -s 4096 -R &
  longhaul exec --host a -- ib_write_bw -d longhaul0 -s 4096 -R 10.77.0.2
  longhaul exec --host a -- ibv_devinfo

The program sees one RDMA device, longhaul0. Host a is 10.77.0.1, host b is 10.77.0.2.
Programs that exchange addresses over TCP (perftest without -R) use 127.0.0.1 for that.";

#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Which host of the lab the program runs on: a or b
    #[arg(long)]
    host: HostName,
    /// Which lab
    #[arg(long, default_value_t)]
    lab: LabName,
    /// The program and its arguments
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    program: Vec<OsString>,
}

pub fn run(args: &Args) -> Result<ExitCode, Problem> {
    let mut command = command(&LabDir::of(&args.lab)?, args.host, &args.program)?;
    let error = command.exec();
    let program = args.program[0].to_string_lossy();
    Err(match error.kind() {
        io::ErrorKind::PermissionDenied => {
            Problem::new(format!("'{program}' cannot be executed"), "check its permissions")
        }
        _ => Problem::plain(format!("cannot run '{program}': {error}")),
    })
}

/// The command that runs `program` on `host`. The command, and then the program, holds one of the host's slots.
pub fn command(dir: &LabDir, host: HostName, program: &[OsString]) -> Result<Command, Problem> {
    let spec = dir.spec()?;
    let (name, arguments) = program.split_first().ok_or_else(|| Problem::plain("no program given"))?;
    let path = find_program(name)?;
    let library = preload_library()?;
    let (slot, lock) = dir.take_slot(host)?;
    let preload = dir.preloadable(library, host, slot)?;

    let mut preloads = preload.into_os_string();
    if let Some(others) = std::env::var_os("LD_PRELOAD").filter(|o| !o.is_empty()) {
        preloads.push(":");
        preloads.push(others);
    }
    let mut command = Command::new(path);
    command
        .arg0(name)
        .args(arguments)
        .env("LD_PRELOAD", preloads)
        .env(attach::ENV_SOCKET, dir.memif_socket(host))
        .env(attach::ENV_ID, slot.to_string())
        .env(attach::ENV_SLOT, slot.to_string())
        .env(attach::ENV_HOST, host.to_string())
        .env(attach::ENV_IP, host.ip().to_string())
        .env(attach::ENV_MAC, attach::mac_of(host.ip()).to_string())
        .env(attach::ENV_PORT_RATE_BPS, spec.rate.as_bps().to_string());
    // The program inherits the open file and with it the slot, until its last process ends.
    // SAFETY: between fork and exec only fcntl is called, which is async-signal-safe, on a descriptor that the
    // closure owns.
    unsafe {
        command.pre_exec(move || match libc::fcntl(lock.as_raw_fd(), libc::F_SETFD, 0) {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        });
    }
    Ok(command)
}

/// Looks `name` up in PATH, so that a missing program gets an answer with its cure.
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
    std::env::split_paths(&path).map(|dir| dir.join(name)).find(|candidate| candidate.is_file()).ok_or_else(
        || {
            let name = name.to_string_lossy();
            let cure = match package_of(&name) {
                Some(package) => format!("install it with 'apt-get install {package}'"),
                None => "check the name, or install its package".to_string(),
            };
            Problem::new(format!("no program '{name}' is installed"), cure)
        },
    )
}

/// Debian's package for the programs that people run here.
fn package_of(program: &str) -> Option<&'static str> {
    match program {
        "rping" | "ucmatose" | "udaddy" | "udpong" | "mckey" | "cmtime" | "rdma_server" | "rdma_client"
        | "rdma_xserver" | "rdma_xclient" | "rstream" | "rcopy" => Some("rdmacm-utils"),
        "qperf" => Some("qperf"),
        name if name.starts_with("ibv_") => Some("ibverbs-utils"),
        name if name.starts_with("ib_") || name.starts_with("raw_ethernet_") => Some("perftest"),
        _ => None,
    }
}

/// The preload library lies beside this program.
fn preload_library() -> Result<PathBuf, Problem> {
    const NAME: &str = "liblonghaul_preload.so";
    let program = std::env::current_exe().map_err(|e| Problem::io("find", Path::new("this program"), &e))?;
    let beside = program.with_file_name(NAME);
    if beside.exists() {
        return Ok(beside);
    }
    Err(Problem::new(
        format!("{} is not there", beside.display()),
        "build it with 'cargo build --release -p longhaul-preload'",
    ))
}
