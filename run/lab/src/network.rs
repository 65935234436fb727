//! The network of a lab's hosts, and the way into a host's namespaces.

use crate::error::Error;
use crate::spec::HostName;
use longhaul_boxes::PathError;
use rustix::thread::{
    CapabilitySet, LinkNameSpaceType, capabilities, configure_capability_in_ambient_set,
    move_into_link_name_space, set_capabilities,
};
use serde::{Deserialize, Serialize};
use std::ffi::CString;
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, RawFd};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// The network of a lab's hosts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", tag = "kind")]
pub enum Network {
    /// Each host has namespaces of its own, with an interface of the kernel.
    Kernel {
        /// Process that holds them.
        holder: u32,
        /// In the order of the hosts.
        hosts: Vec<HostNamespaces>,
    },
    /// Programs on all hosts share this machine's network, as requested.
    None,
    /// The same, for a reason.
    Missing {
        /// What is missing, and why.
        why: String,
    },
}

/// Descriptors of the holder that refer to a host's namespaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostNamespaces {
    /// Network.
    pub network: RawFd,
    /// Mounts.
    pub mounts: RawFd,
    /// Host name.
    pub name: RawFd,
}

/// What a program may do in the user namespace of a lab, beyond its user: configure the host's
/// network, capture packets, and start programs on another host.
const CAPABILITIES: [CapabilitySet; 6] = [
    CapabilitySet::NET_ADMIN,
    CapabilitySet::NET_BIND_SERVICE,
    CapabilitySet::NET_RAW,
    CapabilitySet::SYS_ADMIN,
    CapabilitySet::SYS_CHROOT,
    CapabilitySet::SYS_PTRACE,
];

impl Network {
    /// True if each host has its own.
    pub fn is_of_hosts(&self) -> bool {
        matches!(self, Network::Kernel { .. })
    }

    /// What is missing and why, if hosts should have a network and have none.
    pub fn missing(&self) -> Option<&str> {
        match self {
            Network::Missing { why } => Some(why),
            Network::Kernel { .. } | Network::None => None,
        }
    }

    /// The way into the namespaces of `host`; `None` if it has none.
    ///
    /// # Errors
    /// If the holder is gone, or belongs to another user.
    pub fn entrance(&self, host: HostName) -> Result<Option<Entrance>, Error> {
        let Network::Kernel { holder, hosts } = self else { return Ok(None) };
        let gone = |error| Error::NoNamespaces { host, error };
        let found = hosts.get(host.index()).ok_or_else(|| gone(io::ErrorKind::NotFound.into()))?;
        Entrance::open(*holder, found).map(Some).map_err(gone)
    }
}

/// Opened namespaces of a host.
#[derive(Debug)]
pub struct Entrance {
    /// `None`: that of the caller.
    user: Option<File>,
    others: [(File, LinkNameSpaceType); 3],
    /// The working directory, which must be looked up again among the host's mounts.
    directory: CString,
}

impl Entrance {
    fn open(holder: u32, host: &HostNamespaces) -> io::Result<Self> {
        let of = |fd: RawFd| File::open(format!("/proc/{holder}/fd/{fd}"));
        let user = File::open(format!("/proc/{holder}/ns/user"))?;
        let own = fs::metadata("/proc/self/ns/user")?;
        let there = user.metadata()?;
        let is_own = (there.dev(), there.ino()) == (own.dev(), own.ino());
        let directory = std::env::current_dir()?;
        Ok(Entrance {
            user: (!is_own).then_some(user),
            others: [
                (of(host.network)?, LinkNameSpaceType::Network),
                (of(host.name)?, LinkNameSpaceType::HostNameAndNISDomainName),
                (of(host.mounts)?, LinkNameSpaceType::Mount),
            ],
            directory: CString::new(directory.into_os_string().into_vec())?,
        })
    }

    /// Moves the calling process into the namespaces; it must have one thread. Async-signal-safe,
    /// so that it can run between fork and exec.
    ///
    /// # Errors
    /// The operating system's.
    pub fn enter(&self) -> io::Result<()> {
        if let Some(user) = &self.user {
            move_into_link_name_space(user.as_fd(), Some(LinkNameSpaceType::User))?;
        }
        for (namespace, kind) in &self.others {
            move_into_link_name_space(namespace.as_fd(), Some(*kind))?;
        }
        if self.user.is_some() {
            keep_capabilities()?;
        }
        rustix::process::chdir(self.directory.as_c_str()).map_err(io::Error::from)
    }
}

/// Lets a program keep [`CAPABILITIES`] of the user namespace, although its user is not root there.
fn keep_capabilities() -> io::Result<()> {
    let mut sets = capabilities(None)?;
    sets.inheritable = CAPABILITIES.into_iter().fold(sets.inheritable, |all, one| all | one);
    set_capabilities(None, sets)?;
    for capability in CAPABILITIES {
        configure_capability_in_ambient_set(capability, true)?;
    }
    Ok(())
}

/// Writes `network` to `path`, for [`read`].
pub(crate) fn write(network: &Network, path: &Path) -> Result<(), Error> {
    let text = serde_json::to_string(network).map_err(Error::Describe)?;
    Ok(fs::write(path, text).map_err(|e| PathError::new("write", path, e))?)
}

/// Reads what [`write`] wrote.
pub(crate) fn read(path: &Path) -> Result<Network, Error> {
    let text = fs::read_to_string(path).map_err(|e| PathError::new("read", path, e))?;
    serde_json::from_str(&text)
        .map_err(|error| Error::OtherSpec { path: path.to_path_buf(), error })
}
