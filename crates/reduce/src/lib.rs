//! Data reduction: chunks, fingerprints, the dictionary, references, compression.
