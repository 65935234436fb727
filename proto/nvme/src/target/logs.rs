//! Log pages of a target.

use super::controller::{ControllerId, Serves};
use super::{Arrived, Target};
use crate::fields::put;
use crate::{DiscoveryEntry, DiscoveryHeader, Nqn, Status, SubsystemKind, admin, io, log_page};
use std::net::SocketAddr;

/// A command is supported, without effects; bit 1: it changes the contents of a namespace.
const SUPPORTED: u32 = 1;
const CHANGES_BLOCKS: u32 = 1 << 1 | SUPPORTED;
/// The log does not change while a target runs.
const GENERATION: u64 = 1;
/// Retain Asynchronous Event, dword 10.
const RETAIN_EVENT: u32 = 1 << 15;
/// Longest part of a log page in one command.
const PART_MAX: usize = crate::IDENTIFY_LEN;

impl Target {
    /// The part of a log page that the host requested.
    pub(super) fn log_page(
        &mut self,
        id: ControllerId,
        arrived: &Arrived<'_>,
    ) -> Result<Vec<u8>, Status> {
        let [first, second, ..] = arrived.command.dwords;
        let invalid = Status::INVALID_FIELD.permanent();
        let dwords = u64::from(first >> 16) | u64::from(second & 0xffff) << 16;
        let len = usize::try_from((dwords + 1) * 4).map_err(|_| invalid)?;
        let offset = usize::try_from(arrived.command.quad(2)).map_err(|_| invalid)?;
        if len > PART_MAX || !offset.is_multiple_of(4) {
            return Err(invalid);
        }
        let retains = first & RETAIN_EVENT != 0;
        let page = self.whole_page(id, first as u8, retains, arrived.token.queue)?;
        let part = page.get(offset..).ok_or(invalid)?;
        let mut part = part[..part.len().min(len)].to_vec();
        part.resize(len, 0);
        Ok(part)
    }

    fn whole_page(
        &mut self,
        id: ControllerId,
        page: u8,
        retains: bool,
        admin_queue: super::QueueId,
    ) -> Result<Vec<u8>, Status> {
        match (self.controller(id)?.serves, page) {
            (Serves::Discovery, log_page::DISCOVERY) => {
                let local = self.queues.get(admin_queue).map(|queue| queue.local);
                let host = self.controller(id)?.host.clone();
                Ok(self.discovery(local.ok_or(Status::INTERNAL_ERROR)?, &host))
            }
            (Serves::Subsystem(_), log_page::CHANGED_NAMESPACES) => self.changed(id, retains),
            (Serves::Subsystem(_), log_page::EFFECTS) => Ok(effects()),
            (_, log_page::ERRORS) => Ok(vec![0; 64]),
            (_, log_page::HEALTH) => Ok(health()),
            (_, log_page::FIRMWARE) => Ok(firmware()),
            _ => Err(Status::INVALID_LOG_PAGE.permanent()),
        }
    }

    /// The subsystems that `host` may connect to, at the address through which it came.
    fn discovery(&self, local: SocketAddr, host: &Nqn) -> Vec<u8> {
        let admitting = self.config.subsystems.iter().filter(|one| one.hosts.admit(host));
        let entry = |kind, nqn: &Nqn| {
            let entries = self.config.entries_max;
            DiscoveryEntry::of(kind, local.ip().to_canonical(), local.port(), nqn, entries).write()
        };
        let mut entries = entry(SubsystemKind::Discovery, &Nqn::discovery());
        let mut count = 1;
        for subsystem in admitting {
            entries.extend(entry(SubsystemKind::Nvm, &subsystem.nqn));
            count += 1;
        }
        let mut page = DiscoveryHeader { generation: GENERATION, entries: count }.write();
        page.extend(entries);
        page
    }
}

fn effects() -> Vec<u8> {
    let mut page = vec![0; 4096];
    let mut set = |base: usize, opcode: u8, effects: u32| {
        put(&mut page, base + 4 * usize::from(opcode), &effects.to_le_bytes());
    };
    for opcode in [
        admin::GET_LOG_PAGE,
        admin::IDENTIFY,
        admin::ABORT,
        admin::SET_FEATURES,
        admin::GET_FEATURES,
        admin::ASYNC_EVENT,
        admin::KEEP_ALIVE,
    ] {
        set(0, opcode, SUPPORTED);
    }
    for opcode in [io::FLUSH, io::READ, io::COMPARE] {
        set(1024, opcode, SUPPORTED);
    }
    for opcode in [io::WRITE, io::WRITE_ZEROES, io::DATASET_MANAGEMENT] {
        set(1024, opcode, CHANGES_BLOCKS);
    }
    page
}

fn health() -> Vec<u8> {
    let mut page = vec![0; 512];
    // 20 °C in kelvins; all spare blocks available.
    put(&mut page, 1, &293_u16.to_le_bytes());
    put(&mut page, 3, &[100, 10]);
    page
}

fn firmware() -> Vec<u8> {
    let mut page = vec![0; 512];
    page[0] = 1;
    put(&mut page, 8, env!("CARGO_PKG_VERSION").as_bytes());
    page
}
