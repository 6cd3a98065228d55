"""The paper's constants, conditions and bounds as code; one module a theorem family."""
