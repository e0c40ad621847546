//! Writes an initramfs: an archive in cpio's format "newc" (cpio(5), New ASCII Format), as the kernel
//! unpacks it at its start (Documentation/driver-api/early-userspace/buffer-format.rst).

/// Type and permissions of a directory (inode(7)).
const DIRECTORY: u32 = 0o040_755;
/// The same of a file that may be executed.
const FILE: u32 = 0o100_755;
/// The same of a symbolic link.
const LINK: u32 = 0o120_777;

/// Name of the last entry.
const END: &str = "TRAILER!!!";

/// An archive that is being written. All entries belong to root.
#[derive(Debug, Default)]
pub(super) struct InitramfsArchive {
    bytes: Vec<u8>,
    entries: u32,
}

impl InitramfsArchive {
    /// Adds a directory. The directory around it must be there already, as for every entry.
    pub(super) fn directory(&mut self, path: &str) {
        self.entry(path, DIRECTORY, &[]);
    }

    /// Adds a file that may be executed.
    pub(super) fn file(&mut self, path: &str, content: &[u8]) {
        self.entry(path, FILE, content);
    }

    /// Adds a symbolic link.
    pub(super) fn link(&mut self, path: &str, target: &str) {
        self.entry(path, LINK, target.as_bytes());
    }

    /// Ends the archive.
    pub(super) fn finish(mut self) -> Vec<u8> {
        self.entry(END, 0, &[]);
        self.bytes
    }

    fn entry(&mut self, path: &str, mode: u32, content: &[u8]) {
        self.entries += 1;
        let size = u32::try_from(content.len()).expect("a file of an initramfs is below 4 GiB");
        let name_size = u32::try_from(path.len() + 1).expect("a name is below 4 GiB");
        // ino, mode, uid, gid, nlink, mtime, filesize, devmajor, devminor, rdevmajor, rdevminor,
        // namesize, check
        let fields = [
            self.entries,
            mode,
            0,
            0,
            1,
            0,
            size,
            0,
            0,
            0,
            0,
            name_size,
            0,
        ];
        self.bytes.extend_from_slice(b"070701");
        for field in fields {
            self.bytes
                .extend_from_slice(format!("{field:08X}").as_bytes());
        }
        self.bytes.extend_from_slice(path.as_bytes());
        self.bytes.push(0);
        self.align();
        self.bytes.extend_from_slice(content);
        self.align();
    }

    /// Names and contents begin at multiples of four bytes.
    fn align(&mut self) {
        let length = self.bytes.len().next_multiple_of(4);
        self.bytes.resize(length, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_aligned_and_end_with_a_trailer() {
        let mut archive = InitramfsArchive::default();
        archive.directory("bin");
        archive.file("bin/a", b"hello");
        archive.link("init", "bin/a");
        let bytes = archive.finish();
        assert_eq!(bytes.len() % 4, 0);
        let text = String::from_utf8_lossy(&bytes);
        let heads: Vec<usize> = text.match_indices("070701").map(|(at, _)| at).collect();
        assert_eq!(heads.len(), 4);
        assert!(heads.iter().all(|at| at % 4 == 0));
        // mode and file size of the second entry
        assert_eq!(&text[heads[1] + 14..][..8], "000081ED");
        assert_eq!(&text[heads[1] + 54..][..8], "00000005");
        assert_eq!(&text[heads[1] + 110..][..6], "bin/a\0");
        assert!(text.contains(END));
    }
}
