//! Multicast groups: their members, and reports to the network.

use std::collections::{HashMap, HashSet};
use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::OwnedFd;
use std::sync::{Once, PoisonError};

use longhaul_rnic::{Rnic, VerbsError};
use longhaul_units::Qpn;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with, sockopt};

use crate::attach::{Attach, Line};
use crate::engine::Engine;
use crate::error::RdmaError;
use crate::memory::ProcessMemory;

/// True if the line carries frames to groups.
pub(crate) fn takes_groups(attach: &Attach) -> bool {
    !matches!(attach.line, Line::Udp { .. } | Line::Interface { network: None, .. })
}

/// Reports groups through the kernel (IGMP, MLD), so that switches with snooping forward them here.
/// Reports count by the port of the switch, not by the sender.
pub(crate) struct Reports {
    interface: u32,
    /// Members of each group, and the socket that has joined it: the kernel limits the groups per
    /// socket.
    groups: HashMap<IpAddr, (OwnedFd, HashSet<Qpn>)>,
    /// The user was told that a group is not reported.
    complained: bool,
}

impl Reports {
    pub(crate) fn new(interface: u32) -> Self {
        Reports { interface, groups: HashMap::new(), complained: false }
    }

    /// Reports a group from now on; on failure, says so once on stderr.
    pub(crate) fn join(&mut self, group: IpAddr, member: Qpn) {
        if let Err(error) = self.try_join(group, member)
            && !std::mem::replace(&mut self.complained, true)
        {
            eprintln!(
                "longhaul: the kernel does not report group {group}: {error}; switches with IGMP \
                 or MLD snooping may not forward it"
            );
        }
    }

    fn try_join(&mut self, group: IpAddr, member: Qpn) -> io::Result<()> {
        if let Some((_, members)) = self.groups.get_mut(&group) {
            members.insert(member);
            return Ok(());
        }
        let family = if group.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let socket = socket_with(family, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
        match &group {
            IpAddr::V4(group) => {
                let (any, interface) = (Ipv4Addr::UNSPECIFIED, self.interface);
                sockopt::set_ip_add_membership_with_ifindex(&socket, group, &any, interface)?;
            }
            IpAddr::V6(group) => sockopt::set_ipv6_add_membership(&socket, group, self.interface)?,
        }
        self.groups.insert(group, (socket, HashSet::from([member])));
        Ok(())
    }

    /// Reverses [`Reports::join`] for a member.
    pub(crate) fn leave(&mut self, group: IpAddr, member: Qpn) {
        if let Some((_, members)) = self.groups.get_mut(&group)
            && members.remove(&member)
            && members.is_empty()
        {
            self.groups.remove(&group);
        }
    }
}

impl Engine {
    /// Attaches a datagram queue pair to a group, as `ibv_attach_mcast`.
    ///
    /// # Errors
    /// [`RdmaError::Verbs`], [`RdmaError::Forked`]. With an address that it shares with the host,
    /// over a socket or an interface, the device receives only packets to that address: groups are
    /// not supported (`EOPNOTSUPP`).
    ///
    /// On an interface, untagged, the kernel reports the group to switches (IGMP, MLD). On a TAP
    /// device and in a VLAN nobody does: the network must forward groups that nobody reports.
    pub fn attach_multicast(&self, qpn: Qpn, group: IpAddr) -> Result<(), RdmaError> {
        if !takes_groups(self.attach()) {
            static ONCE: Once = Once::new();
            ONCE.call_once(|| {
                eprintln!(
                    "longhaul: host {}: no multicast with an address that is the host's too, only \
                     in a lab or with one of its own",
                    self.attach().host
                );
            });
            return Err(VerbsError::NotSupported(
                "multicast with an address that is the host's too",
            )
            .into());
        }
        self.change_groups(
            |rnic| rnic.attach_multicast(qpn, group),
            |to| to.join(group.to_canonical(), qpn),
        )
    }

    /// Detaches it again.
    ///
    /// # Errors
    /// [`RdmaError::Verbs`], [`RdmaError::Forked`].
    pub fn detach_multicast(&self, qpn: Qpn, group: IpAddr) -> Result<(), RdmaError> {
        self.change_groups(
            |rnic| rnic.detach_multicast(qpn, group),
            |to| to.leave(group.to_canonical(), qpn),
        )
    }

    /// Changes the device, then the kernel if that reports groups.
    fn change_groups(
        &self,
        change: impl FnOnce(&mut Rnic<ProcessMemory>) -> Result<(), VerbsError>,
        tell: impl FnOnce(&mut Reports),
    ) -> Result<(), RdmaError> {
        let mut state = self.lock()?;
        change(&mut state.rnic)?;
        let reports = state.on_segment.as_ref().and_then(|on_segment| on_segment.reports.clone());
        drop(state);
        if let Some(reports) = reports {
            tell(&mut reports.lock().unwrap_or_else(PoisonError::into_inner));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::attach::{ENV_IP, ENV_ROLE, ENV_SOCKET};

    fn engine(name: &str) -> Arc<Engine> {
        let socket = std::env::temp_dir()
            .join(format!("longhaul-groups-{}-{name}.sock", std::process::id()));
        let attach = Attach::from_lookup(|variable| match variable {
            ENV_SOCKET => Some(socket.display().to_string()),
            ENV_IP => Some("10.77.0.1".to_owned()),
            ENV_ROLE => Some("master".to_owned()),
            _ => None,
        });
        // SAFETY: no memory is ever registered.
        unsafe { Engine::new(attach.unwrap()) }.unwrap()
    }

    #[test]
    fn over_a_socket_there_are_no_groups() {
        let attach = Attach::from_lookup(|variable| match variable {
            crate::attach::ENV_UDP_PORT => Some("14795".to_owned()),
            ENV_IP => Some("127.0.0.91".to_owned()),
            _ => None,
        });
        // SAFETY: no memory is ever registered.
        let by_socket = unsafe { Engine::new(attach.unwrap()) }.unwrap();
        let group = "224.1.2.3".parse().unwrap();
        let refused = by_socket.attach_multicast(Qpn::new(20), group).unwrap_err();
        assert_eq!(refused.errno(), libc::EOPNOTSUPP, "{refused}");
        let limits = |engine: &Engine| {
            engine.with_quietly(|rnic| rnic.config().multicast_group_max).unwrap()
        };
        assert_eq!(limits(&by_socket), 0, "and programs are told so");
        let in_lab = engine("groups");
        assert!(limits(&in_lab) > 0);
        let unknown = in_lab.attach_multicast(Qpn::new(20), group).unwrap_err();
        assert_eq!(unknown.errno(), libc::EINVAL, "{unknown}");
    }
}
