//! Multicast groups and their QPs.

use crate::{Memory, QpKind, Rnic, VerbsError};
use longhaul_units::Qpn;
use std::collections::BTreeMap;
use std::net::IpAddr;

/// Attached QPs by group address, in the order of attachment.
#[derive(Debug, Default)]
pub(crate) struct Groups(BTreeMap<IpAddr, Vec<u32>>);

impl Groups {
    /// Slots of the QPs that are attached to `group`.
    pub fn members(&self, group: IpAddr) -> &[u32] {
        self.0.get(&group).map_or(&[], Vec::as_slice)
    }

    /// Number of groups that `slot` is attached to.
    fn memberships(&self, slot: u32) -> usize {
        self.0.values().filter(|members| members.contains(&slot)).count()
    }
}

impl<M: Memory> Rnic<M> {
    /// Attaches a datagram QP to a group. A second attachment changes nothing; one detach reverts
    /// both.
    pub fn attach_multicast(&mut self, qpn: Qpn, group: IpAddr) -> Result<(), VerbsError> {
        let slot = self.datagram_slot(qpn)?;
        let group = group.to_canonical();
        if !group.is_multicast() {
            return Err(VerbsError::Invalid("the group's address is no multicast address"));
        }
        let (groups_max, qps_max) = (self.config.multicast_group_max, self.config.multicast_qp_max);
        let groups = &mut self.groups.0;
        if !groups.contains_key(&group) && groups.len() >= groups_max as usize {
            return Err(VerbsError::Limit { what: "multicast groups", limit: groups_max.into() });
        }
        let members = groups.entry(group).or_default();
        if members.contains(&slot) {
            return Ok(());
        }
        if members.len() >= qps_max as usize {
            return Err(VerbsError::Limit {
                what: "QPs in the multicast group",
                limit: qps_max.into(),
            });
        }
        members.push(slot);
        Ok(())
    }

    /// Detaches a QP from a group.
    pub fn detach_multicast(&mut self, qpn: Qpn, group: IpAddr) -> Result<(), VerbsError> {
        let slot = self.datagram_slot(qpn)?;
        let group = group.to_canonical();
        let members = self.groups.0.get_mut(&group).ok_or(VerbsError::NoSuch("multicast group"))?;
        let at =
            members.iter().position(|&s| s == slot).ok_or(VerbsError::NoSuch("QP in the group"))?;
        members.remove(at);
        if members.is_empty() {
            self.groups.0.remove(&group);
        }
        Ok(())
    }

    /// Number of groups that a QP is attached to; it cannot be destroyed before it is detached from
    /// all.
    pub(crate) fn multicast_groups_of(&self, slot: u32) -> u32 {
        self.groups.memberships(slot) as u32
    }

    fn datagram_slot(&self, qpn: Qpn) -> Result<u32, VerbsError> {
        let slot = self.slot(qpn).ok_or(VerbsError::NoSuch("QP"))?;
        match self.qps[slot as usize].as_ref().map(|qp| qp.init.kind) {
            Some(QpKind::Ud) => Ok(slot),
            _ => Err(VerbsError::Invalid("only datagram QPs take part in multicast")),
        }
    }
}
