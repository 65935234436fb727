//! Sharing of the store's memory between tenants.
//!
//! A tenant is a prefix of requesters' addresses. Its limits are multiples of the free memory
//! (dynamic thresholds, Choudhury and Hahne 1998): a lone tenant may use nearly all memory, `n`
//! busy ones converge on equal shares, a tenant that needs less than its share leaves the rest to
//! the others, and some memory is always free for a new tenant. Stored packets are never evicted:
//! for a tenant above its limits the box first stops acknowledging early, then refuses packets,
//! until its responders have taken enough.

use crate::Config;
use crate::key::{Map, map};
use longhaul_wire::Prefix;
use std::net::IpAddr;

/// A tenant that stores more than this multiple of the free memory may not run further ahead of its
/// responders: a lone tenant may use three quarters of the memory.
const AHEAD_OF_FREE: u64 = 3;
/// A tenant may store requests, unacknowledged ones included, up to this multiple of the free
/// memory.
const STORED_OF_FREE: u64 = 31;

/// Memory beyond `total_bytes_max` for the first packets of flows that store nothing, in bytes.
const RESERVE: u64 = 64 << 10;

/// Identifies a tenant that has flows.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct TenantId(u32);

/// Snapshot of one tenant: the flows of requesters under one prefix.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TenantStatus {
    /// Prefix of its requesters' addresses.
    pub prefix: Prefix,
    /// Number of flows.
    pub flows: u32,
    /// Bytes of memory that their stores use.
    pub stored_bytes: u64,
    /// Bytes of memory above which its requests are acknowledged only once delivered. Depends on
    /// the free memory.
    pub share_bytes: u64,
    /// Request packets refused for lack of memory since the tenant's first flow was learnt.
    pub refused_packets: u64,
}

struct Tenant {
    prefix: Prefix,
    flows: u32,
    stored: u64,
    refused: u64,
}

/// See the module.
pub(crate) struct Shares {
    /// Indexed by [`TenantId`]; those without flows are in `free`.
    tenants: Vec<Tenant>,
    free: Vec<u32>,
    by_prefix: Map<Prefix, u32>,
    /// Memory that all tenants use.
    stored: u64,
}

impl Shares {
    pub(crate) fn new(seed: u64) -> Self {
        Shares { tenants: Vec::new(), free: Vec::new(), by_prefix: map(seed ^ 3), stored: 0 }
    }

    /// Counts one more flow of `requester`.
    pub(crate) fn join(&mut self, config: &Config, requester: IpAddr) -> TenantId {
        let len =
            if requester.is_ipv4() { config.tenant_prefix_ipv4 } else { config.tenant_prefix_ipv6 };
        let prefix = Prefix::around(requester, len);
        let (tenants, free) = (&mut self.tenants, &mut self.free);
        let number = *self.by_prefix.entry(prefix).or_insert_with(|| {
            let tenant = Tenant { prefix, flows: 0, stored: 0, refused: 0 };
            match free.pop() {
                Some(number) => {
                    tenants[number as usize] = tenant;
                    number
                }
                None => {
                    tenants.push(tenant);
                    tenants.len() as u32 - 1
                }
            }
        });
        self.tenants[number as usize].flows += 1;
        TenantId(number)
    }

    /// Removes a flow of the tenant. The flow must store nothing.
    pub(crate) fn leave(&mut self, id: TenantId) {
        let Some(tenant) = self.tenants.get_mut(id.0 as usize) else { return };
        tenant.flows -= 1;
        if tenant.flows == 0 {
            debug_assert_eq!(tenant.stored, 0);
            self.by_prefix.remove(&tenant.prefix);
            self.free.push(id.0);
        }
    }

    #[inline]
    pub(crate) fn add(&mut self, id: TenantId, bytes: u64) {
        self.stored += bytes;
        if let Some(tenant) = self.tenants.get_mut(id.0 as usize) {
            tenant.stored += bytes;
        }
    }

    #[inline]
    pub(crate) fn sub(&mut self, id: TenantId, bytes: u64) {
        self.stored -= bytes;
        if let Some(tenant) = self.tenants.get_mut(id.0 as usize) {
            tenant.stored -= bytes;
        }
    }

    pub(crate) fn count_refused(&mut self, id: TenantId) {
        if let Some(tenant) = self.tenants.get_mut(id.0 as usize) {
            tenant.refused += 1;
        }
    }

    /// Memory that all tenants use.
    pub(crate) fn stored(&self) -> u64 {
        self.stored
    }

    fn stored_by(&self, id: TenantId) -> u64 {
        self.tenants.get(id.0 as usize).map_or(0, |tenant| tenant.stored)
    }

    fn free_bytes(&self, config: &Config) -> u64 {
        config.total_bytes_max.saturating_sub(self.stored)
    }

    /// Memory above which a tenant's requests are acknowledged only once delivered.
    fn share(&self, config: &Config) -> u64 {
        AHEAD_OF_FREE * self.free_bytes(config)
    }

    /// Bytes that one flow of a tenant may have acknowledged and undelivered, at most `flow_high`.
    /// Each flow of a tenant above its share has a sixteenth of the share.
    #[inline]
    pub(crate) fn flow_high(&self, config: &Config, id: TenantId, flow_high: u64) -> u64 {
        // Below this no tenant can exceed its share.
        if self.stored <= config.total_high() {
            flow_high
        } else {
            self.scarce_high(config, id, flow_high)
        }
    }

    #[cold]
    fn scarce_high(&self, config: &Config, id: TenantId, flow_high: u64) -> u64 {
        let share = self.share(config);
        if self.stored_by(id) > share { flow_high.min(share / 16) } else { flow_high }
    }

    /// True if a tenant may store `bytes` more. `is_first`: for a flow that stores nothing.
    #[inline]
    pub(crate) fn has_room(
        &self,
        config: &Config,
        id: TenantId,
        bytes: u64,
        is_first: bool,
    ) -> bool {
        // Below this no tenant can exceed its limit.
        let is_plenty =
            self.stored + bytes <= config.total_bytes_max / (STORED_OF_FREE + 1) * STORED_OF_FREE;
        is_plenty || self.has_scarce_room(config, id, bytes, is_first)
    }

    #[cold]
    fn has_scarce_room(&self, config: &Config, id: TenantId, bytes: u64, is_first: bool) -> bool {
        let fits = self.stored_by(id) + bytes <= STORED_OF_FREE * self.free_bytes(config);
        fits || (is_first && self.stored + bytes <= config.total_bytes_max + RESERVE)
    }

    /// True if a tenant stores so little that refused requests may be retransmitted.
    pub(crate) fn is_roomy(&self, config: &Config, id: TenantId) -> bool {
        self.stored_by(id) <= STORED_OF_FREE / 4 * self.free_bytes(config)
    }

    /// True if a followed flow may be remembered; it leaves memory for flows with acknowledged
    /// packets.
    pub(crate) fn may_watch(&self, config: &Config, id: TenantId) -> bool {
        self.stored_by(id) < self.free_bytes(config)
    }

    /// A snapshot of each tenant, in no particular order.
    pub(crate) fn status(&self, config: &Config) -> impl Iterator<Item = TenantStatus> {
        let share_bytes = self.share(config).min(config.total_high());
        self.tenants.iter().filter(|tenant| tenant.flows > 0).map(move |tenant| TenantStatus {
            prefix: tenant.prefix,
            flows: tenant.flows,
            stored_bytes: tenant.stored,
            share_bytes,
            refused_packets: tenant.refused,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CHUNK: u64 = 4096;

    fn config() -> Config {
        Config { total_bytes_max: 64 << 20, flow_bytes_max: 16 << 20, ..Config::default() }
    }

    fn tenants(shares: &mut Shares, count: u8) -> Vec<TenantId> {
        (1..=count).map(|host| shares.join(&config(), IpAddr::from([10, 0, 0, host]))).collect()
    }

    /// Each tenant in turn takes all that it may.
    fn fill(shares: &mut Shares, ids: &[TenantId]) {
        loop {
            let mut taken = 0;
            for &id in ids {
                if shares.has_room(&config(), id, CHUNK, false) {
                    shares.add(id, CHUNK);
                    taken += 1;
                }
            }
            if taken == 0 {
                return;
            }
        }
    }

    #[test]
    fn a_lone_tenant_takes_nearly_everything_and_several_take_the_same() {
        for count in [1, 2, 20] {
            let mut shares = Shares::new(7);
            let ids = tenants(&mut shares, count);
            fill(&mut shares, &ids);
            let stored: Vec<u64> = ids.iter().map(|id| shares.stored_by(*id)).collect();
            let (least, most) = (stored.iter().min().unwrap(), stored.iter().max().unwrap());
            assert!(most - least <= CHUNK, "{stored:?}");
            assert!(shares.stored() > config().total_bytes_max / 100 * 95, "{stored:?}");
        }
    }

    #[test]
    fn what_a_tenant_leaves_goes_to_the_others() {
        let mut shares = Shares::new(7);
        let ids = tenants(&mut shares, 3);
        shares.add(ids[0], 1 << 20);
        fill(&mut shares, &ids[1..]);
        assert!(shares.stored_by(ids[1]) > 29 << 20);
    }

    #[test]
    fn a_hog_leaves_room_for_who_comes_later_and_shrinks_as_it_delivers() {
        let mut shares = Shares::new(7);
        let ids = tenants(&mut shares, 2);
        fill(&mut shares, &ids[..1]);
        assert!(shares.has_room(&config(), ids[1], 1 << 20, false));
        // For each delivered chunk of the hog, both tenants may store again.
        for _ in 0..32 << 20 >> 12 {
            shares.sub(ids[0], CHUNK);
            fill(&mut shares, &ids[1..]);
            fill(&mut shares, &ids[..1]);
        }
        let [hog, other] = [0, 1].map(|at| shares.stored_by(ids[at]));
        assert!(hog.abs_diff(other) < 2 << 20, "{hog} {other}");
    }

    #[test]
    fn addresses_of_one_prefix_are_one_tenant_which_is_forgotten_with_its_last_flow() {
        let config = Config { tenant_prefix_ipv4: 24, ..config() };
        let mut shares = Shares::new(7);
        let [one, other, third] = ["10.0.0.1", "10.0.0.2", "10.0.1.1"]
            .map(|ip| shares.join(&config, ip.parse().unwrap()));
        assert!(one == other && one != third);
        let of: Vec<_> = shares
            .status(&config)
            .map(|tenant| (tenant.prefix.to_string(), tenant.flows))
            .collect();
        assert_eq!(of, [("10.0.0.0/24".to_string(), 2), ("10.0.1.0/24".to_string(), 1)]);
        [one, other].into_iter().for_each(|id| shares.leave(id));
        assert_eq!(shares.status(&config).count(), 1);
        assert_eq!(
            shares.join(&config, "fd00::1".parse().unwrap()),
            one,
            "its place is used again"
        );
    }
}
