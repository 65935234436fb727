//! What a load writes to each medium is what it reads.

use crate::world::{World, host, load, nqn, path, served, settings};
use longhaul_nvme::host::OperationKind;
use longhaul_nvme::{Status, host::Operation};
use longhaul_storage::host::Association;
use longhaul_storage::load::{self as loads, Load, LoadError, Outcome};
use longhaul_storage::medium::{File, FileError, Medium};
use std::fs;
use std::sync::atomic::AtomicBool;

const BYTES: u64 = 4 << 20;

fn run(association: &Association, load: &Load) -> Result<Outcome, LoadError> {
    loads::run(association, load, &AtomicBool::new(false))
}

fn memory() -> Medium {
    Medium::memory(BYTES as usize)
}

#[test]
fn memory_keeps_what_was_written_whatever_the_pattern() {
    let world = World::new(settings(vec![served(memory(), BYTES)]));
    let association = Association::connect(&world.host, &host("a", nqn("disk")), 4).unwrap();
    for (pattern, bytes, jobs) in [
        ("write", 512, 1),
        ("randwrite", 4096, 2),
        ("randrw", 8192, 4),
        ("rw", 128 << 10, 1),
        ("randrw", 512, 3),
    ] {
        let load = Load { jobs, ..load(pattern, bytes, 300) };
        let outcome = run(&association, &load).unwrap();
        let what = format!("{pattern}, {bytes} bytes: {:?}", outcome.first_mismatch);
        assert_eq!(outcome.mismatches, 0, "{what}");
        assert!(outcome.verified > 0, "{what}");
        let counted = outcome.reads.operations + outcome.writes.operations;
        assert_eq!(counted, 300 * u64::from(jobs), "{what}");
        assert_eq!(outcome.reads.bytes, outcome.reads.operations * u64::from(bytes));
        assert_eq!(outcome.writes.latency.len(), outcome.writes.operations);
    }
    association.end().unwrap();
    assert!(world.end().written_bytes > 0);
}

/// The check of the load finds what it shall find.
#[test]
fn a_medium_that_forgets_is_found_out() {
    let world = World::new(settings(vec![served(Medium::Null, BYTES)]));
    let association = Association::connect(&world.host, &host("a", nqn("disk")), 1).unwrap();
    let outcome = run(&association, &load("write", 4096, 200)).unwrap();
    assert!(outcome.mismatches > 0 && outcome.first_mismatch.is_some(), "{outcome:?}");
}

#[test]
fn a_file_has_what_was_written_and_survives_its_target() {
    let path = path("img");
    let medium = |create| Medium::File(File::open(&path, create).unwrap());
    let world = World::new(settings(vec![served(medium(Some(BYTES)), BYTES)]));
    let association = Association::connect(&world.host, &host("a", nqn("disk")), 2).unwrap();
    assert!(association.progress().data.as_ref().unwrap().volatile_cache);
    let outcome = run(&association, &Load { jobs: 2, ..load("randrw", 4096, 300) }).unwrap();
    assert_eq!((outcome.mismatches, outcome.verified > 0), (0, true));
    association.end().unwrap();
    world.end();
    let kept = fs::read(&path).unwrap();
    assert!(kept.len() as u64 == BYTES && kept.iter().any(|byte| *byte != 0));

    let world = World::new(settings(vec![served(medium(None), BYTES)]));
    let association = Association::connect(&world.host, &host("a", nqn("disk")), 1).unwrap();
    let mut queue = association.queue(1, 4, 4096).unwrap();
    let mut bytes = vec![0; 4096];
    for block in (0..BYTES / 512).step_by(512) {
        let read = operation(OperationKind::Read, block);
        assert_eq!(one(&mut queue, &read, &mut bytes), Status::SUCCESS);
        assert!(bytes == kept[block as usize * 512..][..4096], "block {block}");
    }
    for kind in [OperationKind::WriteZeroes, OperationKind::Deallocate] {
        let block = if kind == OperationKind::Deallocate { 8 } else { 0 };
        assert_eq!(one(&mut queue, &operation(kind, block), &mut bytes), Status::SUCCESS);
        let read = operation(OperationKind::Read, block);
        assert_eq!(one(&mut queue, &read, &mut bytes), Status::SUCCESS);
        assert!(bytes.iter().all(|byte| *byte == 0), "{kind:?}");
    }
    let flush = Operation { blocks: 0, bytes: 0, ..operation(OperationKind::Flush, 0) };
    assert_eq!(one(&mut queue, &flush, &mut bytes), Status::SUCCESS);
    // A file that shrinks while it is served.
    fs::File::options().write(true).open(&path).unwrap().set_len(4096).unwrap();
    let read = operation(OperationKind::Read, 0);
    assert_eq!(one(&mut queue, &read, &mut bytes), Status::SUCCESS);
    let beyond = operation(OperationKind::Read, 8);
    assert_eq!(one(&mut queue, &beyond, &mut bytes).code(), Status::INVALID_NAMESPACE.code());
    for kind in [OperationKind::Write, OperationKind::WriteZeroes, OperationKind::Deallocate] {
        let beyond = operation(kind, 8);
        let status = one(&mut queue, &beyond, &mut bytes);
        assert_eq!(status.code(), Status::INVALID_NAMESPACE.code(), "{kind:?}");
    }
    assert_eq!(fs::metadata(&path).unwrap().len(), 4096, "nothing extends it");
    fs::remove_file(&path).unwrap();
}

#[test]
fn a_file_is_served_once() {
    let path = path("once");
    let first = File::open(&path, Some(BYTES)).unwrap();
    let again = File::open(&path, None);
    assert!(matches!(again, Err(FileError::InUse(_))));
    drop(first);
    File::open(&path, None).unwrap();
    fs::remove_file(&path).unwrap();
}

fn operation(kind: OperationKind, block: u64) -> Operation {
    Operation { kind, namespace: 1, block, blocks: 8, bytes: 4096 }
}

/// Carries out one operation.
fn one(
    queue: &mut longhaul_storage::host::Queue<()>,
    operation: &Operation,
    bytes: &mut [u8],
) -> Status {
    assert!(queue.submit(operation, ()));
    let mut status = None;
    while status.is_none() {
        queue
            .wait(|queue, answer| {
                queue.read(answer.slot, bytes);
                status = Some(answer.status);
            })
            .unwrap();
    }
    status.unwrap()
}

#[test]
fn loads_that_do_not_fit_are_refused_with_the_limit() {
    let world = World::new(settings(vec![served(memory(), BYTES)]));
    let association = Association::connect(&world.host, &host("a", nqn("disk")), 2).unwrap();
    let refused = |load: Load| run(&association, &load).unwrap_err().to_string();
    let base = load("read", 4096, 1);
    for (load, reason) in [
        (Load { block_bytes: 1000, ..base }, "no multiple of the namespace's blocks of 512"),
        (Load { block_bytes: 256 << 10, ..base }, "limit of 131072 bytes"),
        (Load { depth: 129, ..base }, "limit of 128"),
        (Load { jobs: 3, ..base }, "grants 2 I/O queues for 3 jobs"),
        (Load { namespace: Some(2), ..base }, "no namespace 2"),
        (Load { bytes: Some(4096 * 15), ..base }, "are too few"),
    ] {
        let text = refused(load);
        assert!(text.contains(reason), "{text}");
    }
}
