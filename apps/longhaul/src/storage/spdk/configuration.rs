//! The configuration files of SPDK's programs: methods of its JSON-RPC, by subsystem.

use longhaul_nvme::Nqn;
use serde_json::{Value, json};
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

/// Unit of SPDK's buffers, unless transfers need more of them than a command has elements.
const IO_UNIT: u32 = 8192;
/// Elements of a command's scatter-gather list in SPDK.
const ELEMENTS: u32 = 16;

/// Fabric between hosts and target: a transport type of NVMe-oF.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Fabric {
    /// RDMA.
    #[default]
    Rdma,
    /// TCP, through the kernel.
    Tcp,
}

impl Fabric {
    /// Its name in SPDK.
    fn name(self) -> &'static str {
        match self {
            Fabric::Rdma => "RDMA",
            Fabric::Tcp => "TCP",
        }
    }
}

/// Medium of a namespace: a block device of SPDK.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Backing {
    /// Memory.
    Memory { bytes: u64 },
    /// Nowhere.
    Null { bytes: u64 },
    /// A file or a block device, by the kernel's asynchronous I/O.
    File { path: PathBuf },
}

impl Backing {
    /// The method that creates it.
    fn method(&self, name: &str, block: u32) -> Value {
        let sized = |method: &str, bytes: u64| {
            let blocks = bytes / u64::from(block);
            let params = json!({ "name": name, "num_blocks": blocks, "block_size": block });
            json!({ "method": method, "params": params })
        };
        match self {
            Backing::Memory { bytes } => sized("bdev_malloc_create", *bytes),
            Backing::Null { bytes } => sized("bdev_null_create", *bytes),
            Backing::File { path } => {
                let params = json!({ "name": name, "filename": path, "block_size": block });
                json!({ "method": "bdev_aio_create", "params": params })
            }
        }
    }
}

/// A subsystem with its address, as a host names it.
pub struct Listener {
    /// Name.
    pub nqn: Nqn,
    /// Fabric.
    pub fabric: Fabric,
    /// Address.
    pub at: SocketAddr,
}

impl Listener {
    fn address(&self) -> Value {
        let family = match self.at.ip() {
            IpAddr::V4(_) => "IPv4",
            IpAddr::V6(_) => "IPv6",
        };
        json!({
            "trtype": self.fabric.name(), "adrfam": family,
            "traddr": self.at.ip().to_string(), "trsvcid": self.at.port().to_string(),
        })
    }

    /// The configuration of a host that connects to it.
    pub fn of_host(&self, host: Option<&Nqn>, keep_alive_s: u64) -> Value {
        let mut params = self.address();
        params["name"] = json!("longhaul");
        params["subnqn"] = json!(self.nqn.as_str());
        if let Some(host) = host {
            params["hostnqn"] = json!(host.as_str());
        }
        let options = json!({ "keep_alive_timeout_ms": keep_alive_s.saturating_mul(1000) });
        json!({ "subsystems": [{ "subsystem": "bdev", "config": [
            { "method": "bdev_nvme_set_options", "params": options },
            { "method": "bdev_nvme_attach_controller", "params": params },
        ]}]})
    }
}

/// What a target serves.
pub struct Subsystem {
    /// Name and address.
    pub listener: Listener,
    /// Hosts that it admits; none means all.
    pub hosts: Vec<Nqn>,
    /// Namespaces, and the bytes of their blocks.
    pub namespaces: Vec<(Backing, u32)>,
    /// I/O queues of a host.
    pub queues: u16,
    /// Commands of a queue.
    pub depth: u16,
    /// In-capsule data in bytes.
    pub in_capsule: u32,
    /// Largest transfer in bytes.
    pub transfer_max: u32,
}

impl Subsystem {
    /// Bytes of its namespaces in memory.
    pub fn memory(&self) -> u64 {
        let in_memory = self.namespaces.iter().map(|(backing, _)| match backing {
            Backing::Memory { bytes } => *bytes,
            Backing::Null { .. } | Backing::File { .. } => 0,
        });
        in_memory.sum()
    }

    /// The configuration of the target.
    pub fn of_target(&self) -> Value {
        let Listener { nqn, fabric, .. } = &self.listener;
        let name = |number: usize| format!("namespace{number}");
        let numbered = || (1..).zip(&self.namespaces);
        let bdevs: Vec<Value> = numbered()
            .map(|(number, (backing, block))| backing.method(&name(number), *block))
            .collect();
        let mut methods = vec![
            json!({ "method": "nvmf_create_transport", "params": {
                "trtype": fabric.name(),
                "max_queue_depth": self.depth,
                "max_io_qpairs_per_ctrlr": self.queues,
                "in_capsule_data_size": self.in_capsule,
                "max_io_size": self.transfer_max,
                "io_unit_size": IO_UNIT.max(self.transfer_max / ELEMENTS),
            }}),
            json!({ "method": "nvmf_create_subsystem", "params": {
                "nqn": nqn.as_str(),
                "allow_any_host": self.hosts.is_empty(),
                "serial_number": "LONGHAUL",
                "max_namespaces": self.namespaces.len(),
            }}),
        ];
        methods.extend(numbered().map(|(number, _)| {
            json!({ "method": "nvmf_subsystem_add_ns", "params": {
                "nqn": nqn.as_str(), "namespace": { "nsid": number, "bdev_name": name(number) },
            }})
        }));
        methods.extend(self.hosts.iter().map(|host| {
            json!({ "method": "nvmf_subsystem_add_host", "params": {
                "nqn": nqn.as_str(), "host": host.as_str(),
            }})
        }));
        methods.push(json!({ "method": "nvmf_subsystem_add_listener", "params": {
            "nqn": nqn.as_str(), "listen_address": self.listener.address(),
        }}));
        json!({ "subsystems": [
            { "subsystem": "bdev", "config": bdevs },
            { "subsystem": "nvmf", "config": methods },
        ]})
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listener(fabric: Fabric) -> Listener {
        let nqn = "nqn.2026-01.longhaul:storage".parse().unwrap();
        Listener { nqn, fabric, at: "10.77.0.2:4420".parse().unwrap() }
    }

    #[test]
    fn a_target_has_its_namespaces_hosts_and_address() {
        let subsystem = Subsystem {
            listener: listener(Fabric::Tcp),
            hosts: vec!["nqn.2026-01.org.example:friend".parse().unwrap()],
            namespaces: vec![
                (Backing::Memory { bytes: 1 << 20 }, 4096),
                (Backing::File { path: "/disk".into() }, 512),
            ],
            queues: 4,
            depth: 64,
            in_capsule: 8192,
            transfer_max: 1 << 20,
        };
        assert_eq!(subsystem.memory(), 1 << 20);
        let json = subsystem.of_target();
        let (bdev, nvmf) = (&json["subsystems"][0]["config"], &json["subsystems"][1]["config"]);
        assert_eq!(
            (&bdev[0]["method"], &bdev[0]["params"]["num_blocks"]),
            (&json!("bdev_malloc_create"), &json!(256))
        );
        assert_eq!(bdev[1]["params"]["filename"], "/disk");
        assert_eq!(nvmf[0]["params"]["trtype"], "TCP");
        assert_eq!(nvmf[0]["params"]["io_unit_size"], 65536, "16 elements of a transfer");
        assert_eq!(nvmf[1]["params"]["allow_any_host"], false);
        assert_eq!(nvmf[3]["params"]["namespace"]["nsid"], 2);
        assert_eq!(nvmf[4]["params"]["host"], "nqn.2026-01.org.example:friend");
        assert_eq!(nvmf[5]["params"]["listen_address"]["traddr"], "10.77.0.2");
    }

    #[test]
    fn a_host_connects_with_its_name_and_keep_alive() {
        let host = "nqn.2026-01.org.example:me".parse().unwrap();
        let json = listener(Fabric::Rdma).of_host(Some(&host), 15);
        let methods = &json["subsystems"][0]["config"];
        assert_eq!(methods[0]["params"]["keep_alive_timeout_ms"], 15000);
        let attach = &methods[1]["params"];
        assert_eq!((&attach["trtype"], &attach["trsvcid"]), (&json!("RDMA"), &json!("4420")));
        assert_eq!(attach["hostnqn"], "nqn.2026-01.org.example:me");
    }
}
