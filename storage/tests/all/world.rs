//! Two devices of one process, and a target that a thread serves.

use longhaul_nvme::Nqn;
use longhaul_nvme::host::Identity;
use longhaul_nvme::target::Hosts;
use longhaul_rdma::{Attach, Device, attach};
use longhaul_storage::host;
use longhaul_storage::load::{Load, Until};
use longhaul_storage::medium::Medium;
use longhaul_storage::target::{Served, Server, Settings, Totals};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// For what must happen, on a loaded machine too.
pub const LIMIT: Duration = Duration::from_secs(60);
pub const PORT: u16 = 4420;
const TARGET: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 77, 0, 2));

pub fn nqn(name: &str) -> Nqn {
    format!("nqn.2026-01.org.example:{name}").parse().unwrap()
}

pub fn to() -> SocketAddr {
    SocketAddr::new(TARGET, PORT)
}

/// A path that no other test uses.
pub fn path(what: &str) -> PathBuf {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    std::env::temp_dir().join(format!("longhaul-storage-{}-{count}.{what}", std::process::id()))
}

fn device(role: &str, socket: &str, last: u8) -> Device {
    let attach = Attach::from_lookup(|name| match name {
        attach::ENV_SOCKET => Some(socket.to_owned()),
        attach::ENV_IP => Some(Ipv4Addr::new(10, 77, 0, last).to_string()),
        attach::ENV_ROLE => Some(role.to_owned()),
        _ => None,
    });
    Device::open(attach.unwrap()).unwrap()
}

/// A namespace of blocks of 512 bytes.
pub fn served(medium: Medium, bytes: u64) -> Served {
    Served { medium, bytes, block_shift: 9 }
}

pub fn settings(namespaces: Vec<Served>) -> Settings {
    Settings {
        port: PORT,
        nqn: nqn("disk"),
        hosts: Hosts::Any,
        namespaces,
        queues: 8,
        entries: 129,
        in_capsule: 4096,
        transfer_max: 128 << 10,
    }
}

/// A served target, and the device of its host.
pub struct World {
    pub host: Device,
    stop: Arc<AtomicBool>,
    server: Option<JoinHandle<Server>>,
}

impl World {
    pub fn new(settings: Settings) -> Self {
        let socket = path("sock").display().to_string();
        let serving = device("master", &socket, 2);
        let host = device("slave", &socket, 1);
        let stop = Arc::new(AtomicBool::new(false));
        let mut server = Server::listen(&serving, settings).unwrap();
        let server = {
            let stop = Arc::clone(&stop);
            std::thread::spawn(move || {
                server.run(&stop, |_| {}).unwrap();
                server
            })
        };
        World { host, stop, server: Some(server) }
    }

    pub fn end(self) -> Totals {
        self.fall_silent().totals()
    }

    /// The target answers no more; its device and its connections stay while the result exists.
    pub fn fall_silent(mut self) -> Server {
        self.stop.store(true, Ordering::Relaxed);
        self.server.take().unwrap().join().unwrap()
    }
}

impl Drop for World {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(server) = self.server.take() {
            let _ = server.join();
        }
    }
}

pub fn host(name: &str, subsystem: Nqn) -> host::Settings {
    let mut host_id = [0; 16];
    host_id[..name.len()].copy_from_slice(name.as_bytes());
    host::Settings {
        to: to(),
        identity: Identity { host_id, host: nqn(name), subsystem },
        keep_alive: LIMIT,
        connect_within: LIMIT,
    }
}

pub fn load(pattern: &str, block_bytes: u32, operations: u64) -> Load {
    Load {
        pattern: pattern.parse().unwrap(),
        block_bytes,
        depth: 16,
        jobs: 1,
        read_percent: 50,
        until: Until::Operations(operations),
        ramp: Duration::ZERO,
        bytes: None,
        namespace: None,
        verify: true,
        seed: 1,
    }
}
