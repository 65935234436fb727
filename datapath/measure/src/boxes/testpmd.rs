//! DPDK's forwarder over the same ports and load, for comparison.

use super::error::Error;
use super::served::{RING_FRAMES, Sockets};
use crate::pinning;
use longhaul_datapath::{LoadConfig, Row};
use longhaul_memif::MemifPort;
use std::io::Write as _;
use std::process::{Child, Command, Stdio};

/// Its executable.
pub const PROGRAM: &str = "dpdk-testpmd";

/// Checks that testpmd is installed.
pub fn check_installed() -> Result<(), Error> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    if std::env::split_paths(&path).any(|folder| folder.join(PROGRAM).is_file()) {
        return Ok(());
    }
    Err(Error::NoTestpmd)
}

/// testpmd between two sockets.
pub struct Beside {
    sockets: Sockets,
    core: Option<usize>,
    child: Option<Child>,
}

impl Beside {
    /// Prepares its sockets.
    pub fn new(core: Option<usize>) -> Result<Self, Error> {
        Ok(Beside { sockets: Sockets::new()?, core, child: None })
    }

    /// The load with testpmd, which swaps addresses and forwards.
    pub fn row(&mut self, load: LoadConfig) -> Result<Row<MemifPort>, Error> {
        // It connects once, at its start.
        let row = self.sockets.row(load)?;
        self.child = Some(self.spawn()?);
        Ok(row)
    }

    fn spawn(&self) -> Result<Child, Error> {
        let last = std::thread::available_parallelism().map_or(1, usize::from) - 1;
        let cores = match self.core {
            Some(core) => format!("--lcores=0@(0-{last}),1@{core}"),
            None => format!("--lcores=(0,1)@(0-{last})"),
        };
        let mut command = Command::new(PROGRAM);
        command.args([
            "--no-huge",
            "-m",
            "256",
            "--no-pci",
            "--no-shconf",
            "--no-telemetry",
            &cores,
        ]);
        for (number, socket) in self.sockets.paths().iter().enumerate() {
            let socket = socket.display();
            let ring = RING_FRAMES.ilog2();
            command.arg(format!(
                "--vdev=net_memif{number},role=client,socket={socket},socket-abstract=no,\
                 rsize={ring},bsize=4608"
            ));
        }
        command.args([
            "--",
            "-i",
            "--forward-mode=macswap",
            "--burst=64",
            "--total-num-mbufs=8192",
        ]);
        command.arg("--mbuf-size=4864");
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut child = pinning::start_unpinned(&mut command).map_err(Error::StartTestpmd)?;
        if let Some(stdin) = &mut child.stdin {
            writeln!(stdin, "start").map_err(Error::StartTestpmd)?;
        }
        Ok(child)
    }
}

impl Drop for Beside {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            // It may already have ended.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
