//! Multicast groups: who is in them, and who tells the network.

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

/// Whether the line carries what is sent to groups.
pub(crate) fn takes_groups(attach: &Attach) -> bool {
    !matches!(attach.line, Line::Udp { .. } | Line::Interface { network: None, .. })
}

/// Groups that the kernel reports (IGMP, MLD), so that switches that forward groups only to where
/// they are wanted forward them here. They count where a frame comes from, not who has sent it.
pub(crate) struct Reports {
    interface: u32,
    /// Each with its members, and a socket whose membership it is: the kernel limits how many one
    /// socket has.
    groups: HashMap<IpAddr, (OwnedFd, HashSet<Qpn>)>,
    /// It was said that one is not reported.
    complained: bool,
}

impl Reports {
    pub(crate) fn new(interface: u32) -> Self {
        Reports { interface, groups: HashMap::new(), complained: false }
    }

    /// Has a group reported from now on; says once on stderr if that cannot be.
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

    /// The same when a member is one no more.
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
    /// Puts a datagram queue pair into a group, for what `ibv_attach_mcast` does.
    ///
    /// # Errors
    /// [`RdmaError::Verbs`], [`RdmaError::Forked`]. With an address that it shares with the host,
    /// over a socket or an interface, the device receives only what is sent to that address: groups
    /// are not supported (`EOPNOTSUPP`).
    ///
    /// On an interface, untagged, the kernel reports the group to switches (IGMP, MLD). On a TAP
    /// device and in a VLAN nobody does: what is between has to forward groups that nobody reports.
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

    /// Takes it out again.
    ///
    /// # Errors
    /// [`RdmaError::Verbs`], [`RdmaError::Forked`].
    pub fn detach_multicast(&self, qpn: Qpn, group: IpAddr) -> Result<(), RdmaError> {
        self.change_groups(
            |rnic| rnic.detach_multicast(qpn, group),
            |to| to.leave(group.to_canonical(), qpn),
        )
    }

    /// Tells the device, then the kernel where that reports groups.
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
